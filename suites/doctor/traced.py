"""TraceML's callback for a loader of ours: named by the configuration of suites/doctor/rival.py."""

from collections.abc import Iterator
from typing import Any

import traceml_ai
from traceml_ai.integrations.lightning import TraceMLCallback

from imagenet_opt.data.batch import Batch
from imagenet_opt.data.prefetcher import DevicePrefetcher


class Traced(TraceMLCallback):
    """Times what the training loop waits for, as TraceML asks of those whose loader is not torch's.

    By itself it would time torch's DataLoader, which a thread of DevicePrefetcher asks, whenever there is room.
    """

    def __init__(self) -> None:
        super().__init__()
        traceml_ai.init(mode="selective", patch_h2d=True)
        self._iterate: Any = DevicePrefetcher.__iter__

    def setup(self, trainer: Any, pl_module: Any, stage: str | None = None) -> None:
        super().setup(trainer, pl_module, stage)
        iterate = self._iterate

        def timed(loader: DevicePrefetcher) -> Iterator[Batch]:
            waits: Iterator[Batch] = traceml_ai.wrap_dataloader_fetch(iterate(loader))
            return waits

        DevicePrefetcher.__iter__ = timed

    def teardown(self, trainer: Any, pl_module: Any, stage: str | None = None) -> None:
        DevicePrefetcher.__iter__ = self._iterate
        super().teardown(trainer, pl_module, stage)
