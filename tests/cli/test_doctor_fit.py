from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from lightning.pytorch import Trainer

from callbacks.acceleration import Acceleration
from imagenet_opt.cli.build import build_model, build_trainer
from imagenet_opt.cli.doctor_fit import Watch, compile_seconds
from imagenet_opt.cli.doctor_run import only, run_folder
from imagenet_opt.cli.tune_trial import Repeated, random_batch
from imagenet_opt.data.batch import Batch
from tests.cli.test_build import tiny


class Queue(Repeated):
    """A batch again and again, of which so many may be ready, and are; `refilled` as they are taken or not at all."""

    def __init__(self, batch: Batch, num_ready: int, *, refilled: bool) -> None:
        super().__init__(batch, 1_000_000)
        self.loader = SimpleNamespace(num_workers=1, prefetch_factor=num_ready)
        self.num_ready, self.refilled = num_ready, refilled

    def __iter__(self) -> Iterator[Batch]:
        for batch in super().__iter__():
            self.num_ready -= not self.refilled
            yield batch


@pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`")
@pytest.mark.parametrize(
    ("num_ready", "refilled", "steady"), [(1, True, True), (1_000_000, True, True), (1_000_000, False, False)]
)
def test_a_stock_that_shrinks_while_it_is_timed_is_told(
    num_ready: int, refilled: bool, steady: bool, images_root: Path, tmp_path: Path
) -> None:
    watch = Watch(seconds=0.01, limit_seconds=0.5, multiple=1, sees_kernels=True, sees_waits=True)
    asked = only(tiny(tmp_path, images_root, "model.num_classes=3"), callbacks=())
    with run_folder(asked, within=tmp_path) as config:
        trainer = build_trainer(config)
        trainer.callbacks.append(watch)  # type: ignore[attr-defined]
        queue = Queue(random_batch(config, trainer), num_ready, refilled=refilled)
        trainer.fit(build_model(config, global_batch=6), train_dataloaders=queue)
    assert watch.seen.steady == steady
    assert watch.seen.phases and watch.seen.kernel_seconds is None


def test_capturing_a_graph_counts_as_compiling() -> None:
    acceleration = Acceleration()
    trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, callbacks=[acceleration])
    assert compile_seconds(trainer) is None
    acceleration.cuda_graph_seconds = 2.0
    assert compile_seconds(trainer) == 2.0
    acceleration.compile_seconds = 30.0
    assert compile_seconds(trainer) == 32.0
