"""TraceML's callback for the project's loader, for suites/doctor/rival.py."""

from collections.abc import Iterator
from typing import Any

import traceml_ai
from traceml_ai.integrations.lightning import TraceMLCallback

from imagenet_opt.data.batch import Batch
from imagenet_opt.data.prefetcher import DevicePrefetcher


class Traced(TraceMLCallback):
    """Times the waits of the training loop, as TraceML's documentation advises for loaders other than torch's.

    TraceML's default times torch's DataLoader, from which a thread of DevicePrefetcher reads ahead.
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
