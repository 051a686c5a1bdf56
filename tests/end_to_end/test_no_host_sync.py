"""No part of a training step makes the host wait for the device, also where a row of metrics is logged and written.

On a CPU every tensor counts as a tensor of the device; tests/gpu/test_training.py asks a GPU, which sees waits inside
C++ too.
"""

from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Callback, LightningModule, Trainer

from imagenet_opt.measure.telemetry.host_syncs import HostSyncs
from imagenet_opt.training.build_run import build_run
from tests.config.configs import tiny


class Monitor(Callback):
    """The first callback. Monitors whole steps, with fetching and Lightning's loop, from the second step to the last
    but one: among them are two logging steps, and two steps that write their rows."""

    def __init__(self) -> None:
        self.waits = HostSyncs(on_device=lambda tensor: not tensor.is_shared())  # workers' memory is shared
        self.num_steps = 0

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if batch_idx == trainer.max_steps - 1:
            self.waits.__exit__(None, None, None)
        elif batch_idx == 1:
            self.waits.__enter__()
        self.num_steps += 1 <= batch_idx < trainer.max_steps - 1


class DeliberateItem(Callback):
    """The last callback: without a wait that is found, the test could not fail."""

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        next(pl_module.parameters()).sum().item()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.parametrize(
    "overrides",
    [
        ("data.augment=trivialaugment", "data.random_erasing=1", "optimizer=adamw"),
        (
            *("model.micro_batch_size=1", "callbacks.ema.decay=0.9998", "trainer.precision=bf16-mixed"),
            *("optimizer=lamb", "data.augment=rand-m7-mstd0.5-inc1", "data.random_erasing=0.5"),
        ),
    ],
    ids=",".join,
)
def test_a_step_reads_nothing_from_the_device(overrides: tuple[str, ...], tmp_path: Path, images_root: Path) -> None:
    """18 steps of an epoch of 19, with all callbacks of the default configuration; each 6th step logs a row."""
    words = ("data.image_size=64", "data.batch_size=2", "trainer.max_steps=18", "trainer.log_every_n_steps=6")
    words += ("trainer.limit_val_batches=0", "trainer.num_sanity_val_steps=0", "callbacks.mixing.mode=on", *overrides)
    run, monitor = build_run(tiny(tmp_path, images_root, *words)), Monitor()
    run.trainer.callbacks[:] = [monitor, *run.trainer.callbacks, DeliberateItem()]  # type: ignore[attr-defined]
    run.trainer.fit(run.model, datamodule=run.data)
    ((wait, number),) = monitor.waits.counts.items()
    assert (wait.code, number, monitor.num_steps) == ("next(pl_module.parameters()).sum().item()", 16, 16)
