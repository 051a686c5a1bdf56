"""No part of a training step makes the host wait for the device, also where a row of metrics is logged and written.

The test needs no GPU: on a CPU every tensor counts as a tensor of the device. Two monitors run at the same time:
`HostSyncs` sees calls of torch from Python, such as `.cpu()`; `HostReads` sees operations in torch's dispatcher, which
C++ and the backward pass call too.
"""

import traceback
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils._python_dispatch import TorchDispatchMode

from imagenet_opt.measure.telemetry.host_syncs import HostSyncs
from imagenet_opt.training.build_run import build_run
from tests.conftest import composed

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers")

aten = torch.ops.aten
READS = (
    aten._local_scalar_dense, aten.is_nonzero, aten.nonzero, aten.masked_select, aten.equal, aten.bincount,
    aten._unique, aten._unique2, aten.unique_dim, aten.unique_consecutive,
)  # fmt: skip
"""Operations that need a number from the device before the host can go on."""


class HostReads(TorchDispatchMode):
    """Records operations that read from the device, except for operations of torch's optimizers."""

    def __init__(self) -> None:
        super().__init__()
        self.stacks: list[str] = []
        self.num_operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.num_operations += 1
        if (func.overloadpacket in READS or _has_mask(func, args)) and not _in_optimizer():
            self.stacks.append(f"{func.overloadpacket.__name__}\n{''.join(traceback.format_stack(limit=12))}")
        return func(*args, **(kwargs or {}))


def _has_mask(func: Any, args: Any) -> bool:
    if func.overloadpacket not in (aten.index, aten.index_put_, aten.index_put, aten._index_put_impl_):
        return False
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])


def _in_optimizer() -> bool:
    """The step counts of torch's Adam and timm's Lamb are tensors on the host."""
    files = [Path(frame.filename) for frame in traceback.extract_stack()]
    return any(file.parent.name == "optim" and file.stem in ("adam", "adamw", "sgd", "lamb") for file in files)


class Monitors(Callback):
    """The first callback. Monitors whole steps, with fetching and Lightning's loop, from the second step to the last
    but one: among them are two logging steps, and two steps that write their rows."""

    def __init__(self) -> None:
        self.reads = HostReads()
        self.waits = HostSyncs(on_device=lambda tensor: not tensor.is_shared())  # workers' memory is shared
        self.num_steps = 0

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if batch_idx == trainer.max_steps - 1:
            self.waits.__exit__(None, None, None)
            self.reads.__exit__(None, None, None)
        elif batch_idx == 1:
            self.reads.__enter__()
            self.waits.__enter__()
        self.num_steps += 1 <= batch_idx < trainer.max_steps - 1


class DeliberateItem(Callback):
    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        next(pl_module.parameters()).sum().item()


def fit(folder: Path, images_root: Path, *overrides: str, more: tuple[Callback, ...] = ()) -> Monitors:
    """18 steps of an epoch of 19, with all callbacks of the default configuration; each 6th step logs a row."""
    config = composed(
        f"data.root={images_root}", f"data.cache_dir={folder}", f"run_folder={folder}", "data.num_workers=0",
        "data.image_size=64", "data.batch_size=2", "model.name=test_resnet", "logger=[csv]",
        "trainer.max_steps=18", "trainer.log_every_n_steps=6", "trainer.limit_val_batches=0", "trainer.accelerator=cpu",
        "trainer.num_sanity_val_steps=0", "callbacks.mixing.mode=on", *overrides,
    )  # fmt: skip
    run = build_run(config)
    monitors = Monitors()
    run.trainer.callbacks[:] = [monitors, *run.trainer.callbacks, *more]  # type: ignore[attr-defined]
    run.trainer.fit(run.model, datamodule=run.data)
    return monitors


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        (),
        (
            *("model.micro_batch_size=1", "callbacks.ema.decay=0.9998", "trainer.precision=bf16-mixed"),
            *("optimizer=lamb", "data.augment=rand-m7-mstd0.5-inc1", "data.random_erasing=0.5"),
        ),
        ("data.augment=trivialaugment", "data.random_erasing=1", "optimizer=adamw"),
    ],
    ids=lambda overrides: ",".join(overrides) or "default",
)
def test_a_step_reads_nothing_from_the_device(overrides: tuple[str, ...], tmp_path: Path, images_root: Path) -> None:
    monitors = fit(tmp_path, images_root, *overrides)
    assert monitors.num_steps == 16
    assert monitors.reads.num_operations > 100
    assert not monitors.reads.stacks, "\n".join(monitors.reads.stacks)
    assert not monitors.waits.counts


@pytest.mark.slow
def test_one_item_per_step_is_found(tmp_path: Path, images_root: Path) -> None:
    monitors = fit(tmp_path, images_root, more=(DeliberateItem(),))
    assert len(monitors.reads.stacks) == sum(monitors.waits.counts.values()) == 16
