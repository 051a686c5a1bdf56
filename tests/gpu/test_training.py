"""The trainer's step on a real GPU: no host sync, right switches, compiled, the same losses."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, Trainer

from imagenet_opt.callbacks.mixing import Mixing
from imagenet_opt.callbacks.throughput import Throughput
from imagenet_opt.data.datamodule import ImageData, folder_data
from imagenet_opt.model.classifier import Classifier
from imagenet_opt.model.network import build_network
from imagenet_opt.model.optimizer import build_optimizer
from imagenet_opt.model.schedule import cosine
from tests.callbacks.conftest import switched
from tests.conftest import loading_options, quiet_trainer

LOADING = loading_options(batch_size=8, image_size=64, num_workers=2, crop_scale=(0.35, 1.0), seed=0)


class Recorder(Callback):
    """Keeps the loss sums of each step on the device, and what kind of optimizer ran."""

    def __init__(self) -> None:
        self.losses: list[torch.Tensor] = []

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *_: Any) -> None:
        self.losses.append(pl_module.train_tally.sums[0].clone())
        self.fused = trainer.optimizers[0].param_groups[0]["fused"]


class NoSync(Callback):
    """Comes before all others, and `SyncAllowed` after them: from the third step on any host sync between is an error,
    also in what callbacks do when a step starts and ends, and in what is queued for rows of metrics."""

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx >= 2:
            torch.cuda.set_sync_debug_mode("error")

    def on_exception(self, *_: Any) -> None:
        torch.cuda.set_sync_debug_mode("default")


class SyncAllowed(Callback):
    """What the loop does between two steps may wait."""

    def on_train_batch_end(self, *_: Any) -> None:
        torch.cuda.set_sync_debug_mode("default")


def fit(
    root: Path, tmp_path: Path, *callbacks: Callback, precision: str = "bf16-mixed", every: int = 1000, **model: Any
) -> Recorder:
    """every: steps between two rows of metrics."""
    data: ImageData = folder_data(
        root=str(root), train_folder="train", val_folder="val", cache_dir=str(tmp_path / "cache"), **LOADING
    )
    torch.manual_seed(0)
    optimizer = partial(
        build_optimizer,
        name="sgd",
        lr=0.1,
        weight_decay=1e-4,
        momentum=0.9,
        nesterov=False,
        fused=None,
        global_batch=LOADING["batch_size"],
    )
    module = Classifier(
        build_network("resnet10t", num_classes=data.num_classes),
        optimizer=optimizer,
        label_smoothing=0.0,
        schedule=partial(cosine, warmup_epochs=0),
        **model,
    )
    recorder = Recorder()
    trainer = quiet_trainer(
        accelerator="gpu",
        devices=1,
        precision=precision,
        max_epochs=2,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        log_every_n_steps=every,
        callbacks=[*callbacks, recorder, SyncAllowed()],
    )
    trainer.fit(module, datamodule=data)
    return recorder


def test_the_step_never_waits_for_the_device(images_root: Path, tmp_path: Path) -> None:
    switches = switched(channels_last=True, tf32=True, cudnn_benchmark=True)
    mixing = Mixing(mode="on", num_classes=3)
    recorder = fit(images_root, tmp_path, NoSync(), switches, mixing, Throughput(), every=1)
    assert len(recorder.losses) == 8
    assert all(torch.isfinite(loss) for loss in recorder.losses)
    assert recorder.fused


def test_micro_batches_and_clipping_do_not_wait_either(images_root: Path, tmp_path: Path) -> None:
    recorder = fit(images_root, tmp_path, NoSync(), micro_batch_size=4, max_grad_norm=1.0)
    assert all(torch.isfinite(loss) for loss in recorder.losses)


def test_clipping_works_beside_a_fused_optimizer_and_loss_scaling(images_root: Path, tmp_path: Path) -> None:
    recorder = fit(images_root, tmp_path, precision="16-mixed", max_grad_norm=1.0)
    assert recorder.fused
    assert all(torch.isfinite(loss) for loss in recorder.losses)


SLOW = [pytest.param(mode, marks=pytest.mark.slow) for mode in ("reduce-overhead", "max-autotune")]


@pytest.mark.parametrize("mode", ["default", *SLOW])
def test_compiled_training_has_the_losses_of_eager(mode: str, images_root: Path, tmp_path: Path) -> None:
    eager = fit(images_root, tmp_path, switched(), precision="32-true")  # without TF32, which torch has on
    compiling = switched(compile=True, compile_mode=mode, on_failure="stop")
    compiled = fit(images_root, tmp_path, compiling, precision="32-true")
    assert compiling.compile_seconds is not None
    torch.testing.assert_close(torch.stack(compiled.losses), torch.stack(eager.losses), rtol=2e-3, atol=2e-3)
