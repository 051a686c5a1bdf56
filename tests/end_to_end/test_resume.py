"""A run that is stopped at any place and resumed ends as a run that nobody stops, in each bit and each row.

The runs have all default callbacks and the options of a long recipe: two epochs of four steps, with a validation after
every two steps, and a row of metrics after every three.
"""

import gc
import signal
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from omegaconf import DictConfig

from imagenet_opt.errors import Preempted
from imagenet_opt.run.checkpoint import files
from imagenet_opt.run.checkpoint.names import BEST, LAST
from imagenet_opt.run.record import read_summary
from imagenet_opt.training.build_run import build_run
from tests.callbacks.conftest import AtCall, WatchKeys
from tests.config.configs import composed
from tests.processes import on_ranks, run_train
from tests.test_train import assert_same, environment, metrics

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch ended"),
    pytest.mark.filterwarnings("ignore:.*sync_dist=True"),  # which the sums of a validation do not need
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]
RECIPE = (
    *("trainer.precision=32-true", "trainer.deterministic=true", "trainer.max_epochs=2", "trainer.log_every_n_steps=3"),
    *(
        "trainer.val_check_interval=2",
        "trainer.limit_val_batches=3",
        "callbacks.mixing.mode=on",
        "schedule.warmup_epochs=0.75",
    ),
    *("data.num_workers=0", "data.global_batch_size=8", "data.augment=rand-m9-mstd0.5"),
    "data.random_erasing=0.5",
    *("model.name=test_resnet", "model.drop_path_rate=0.2"),
    *("model.micro_batch_size=3", "model.batch_norm_momentum=per_step", "optimizer.layer_decay=0.5"),
)
GROWTH = ("start=24", "end=32", "step=8", "grow_from=0.5", "grow_until=0.5")
AVERAGING = ("callbacks.ema.decay=0.5", *(f"callbacks.resolution_schedule.{option}" for option in GROWTH))
STOPS = {
    "from place to place": (
        True,
        *(("on_train_batch_start", 1, 0), ("on_validation_start", 1, 2), ("on_validation_epoch_end", 1, 2)),
        *(("on_train_batch_start", 2, 3), ("on_train_epoch_end", 1, 4), ("watch", 2, 5)),
        *(("on_before_optimizer_step", 2, 5), ("on_validation_batch_start", 2, 6)),
    ),
    "in the validation at the end of an epoch": (
        True,
        *(("on_validation_batch_end", 5, 4), ("on_validation_epoch_end", 1, 4), ("on_validation_epoch_start", 3, 8)),
    ),
    "at the begin of an epoch": (
        True,
        *(("on_save_checkpoint", 2, 4), ("on_train_batch_start", 1, 4), ("on_before_optimizer_step", 3, 4)),
    ),
    "without averaged weights": (
        False,
        *(("on_validation_batch_start", 2, 2), ("watch", 2, 3), ("on_train_epoch_start", 1, 4), ("on_train_end", 1, 8)),
    ),
}
"""Whether weights are averaged, and the stops of each run, one after the other: a hook, its call in that start, and the
step from which the run resumes."""


class Noise(Callback):
    """Draws from the random state of the run while it validates."""

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        torch.rand(1)


class Stop(AtCall, WatchKeys):
    """Calls `act` at one call of a hook, or of `watch`, the wait for the next batch."""

    def watch(self) -> None:
        pass


def preempt() -> None:
    raise Preempted("stop requested")


sigterm = partial(signal.raise_signal, signal.SIGTERM)


def fit(config: DictConfig, folder: Path, *callbacks: Callback) -> None:
    """Start the run in `folder`, or resume it."""
    gc.freeze()  # the fit before has released what tests/conftest.py froze: a million objects for a full collection
    config = deepcopy(config)
    config.run_folder = str(folder)
    run = build_run(config)
    own: list[Any] = run.trainer.callbacks  # type: ignore[attr-defined]
    own[-1:-1] = [Noise(), *callbacks]  # before the callback that saves
    torch.manual_seed(2)
    run.trainer.fit(run.model, datamodule=run.data, ckpt_path=run.checkpoint, weights_only=True)


def cut(config: DictConfig, folder: Path, hook: str, call: int) -> int:
    """Start the run, stop it, and return the step from which it resumes; 0 for the beginning."""
    act = sigterm if hook == "on_save_checkpoint" else preempt  # nothing stops inside a save
    with pytest.raises(Preempted):
        fit(config, folder, Stop(hook, call, act))
    last = folder / LAST
    return int(files.read(last)["global_step"]) if last.exists() else 0


def assert_same_end(first: Path, second: Path) -> None:
    for name in (LAST, BEST):
        assert_same(files.load(first / name), files.load(second / name), name)
    assert metrics(first) == metrics(second)


def words(images_root: Path, *, ema: bool) -> tuple[str, ...]:
    return (f"data.root={images_root}", "data.image_size=32", *RECIPE, *(AVERAGING if ema else ()))


@pytest.fixture(scope="module")
def configs(images_root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[bool, DictConfig]:
    """By whether weights are averaged."""
    folder = tmp_path_factory.mktemp("configs")
    return {ema: composed(folder, *words(images_root, ema=ema)) for ema in (True, False)}


@pytest.fixture(scope="module", autouse=True)
def small_parts() -> Any:
    """Split a batch of 8 like a batch of thousands."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("imagenet_opt.data.order.PART_IMAGES", 5)
        yield


@pytest.fixture(scope="module")
def clean(configs: dict[bool, DictConfig], tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    folders = {ema: tmp_path_factory.mktemp("clean") for ema in configs}
    for ema, folder in folders.items():
        fit(configs[ema], folder)
    return folders


@pytest.mark.parametrize("name", STOPS)
def test_a_run_that_is_stopped_again_and_again_ends_as_the_undisturbed_run(
    name: str, configs: dict[bool, DictConfig], clean: dict[bool, Path], tmp_path: Path
) -> None:
    ema, *stops = STOPS[name]
    assert [(hook, call, cut(configs[ema], tmp_path, hook, call)) for hook, call, _ in stops] == stops
    fit(configs[ema], tmp_path)
    assert_same_end(clean[ema], tmp_path)


def test_a_run_without_steps_left_repeats_its_last_validation_and_finishes(
    configs: dict[bool, DictConfig], images_root: Path, tmp_path: Path
) -> None:
    config = deepcopy(configs[True])
    config.trainer.max_steps = 7  # without a validation by val_check_interval
    fit(config, tmp_path / "clean")
    assert cut(config, tmp_path / "cut", "on_validation_batch_start", 11) == 7
    ends = ("trainer.max_steps=7", "trainer.accelerator=cpu", "logger=csv", f"hydra.run.dir={tmp_path}/cut")
    done = run_train([*words(images_root, ema=True), *ends], cwd=tmp_path, environment=environment(tmp_path))
    assert (done.returncode, "run finished" in done.stdout) == (0, True), done.stderr
    assert read_summary(tmp_path / "cut")["steps"] == 7
    assert metrics(tmp_path / "clean") == metrics(tmp_path / "cut")
    first, second = (files.load(tmp_path / name / BEST) for name in ("clean", "cut"))
    for key in ("state_dict", "current_model_state", "optimizer_states"):
        assert_same(first[key], second[key])


def test_a_run_that_fails_keeps_its_checkpoints(configs: dict[bool, DictConfig], tmp_path: Path) -> None:
    def fail() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        fit(configs[False], tmp_path, AtCall("on_train_epoch_start", 2, fail))
    assert files.read(tmp_path / LAST)["global_step"] == 4
    assert not list(tmp_path.glob("**/*.new"))


SIGNALS = (("watch", 2), ("on_train_epoch_end", 1), ("on_validation_start", 2))
"""Hook, its call with a signal, in each start after its first step: before that, a process stops without the others."""


def stopped_by_signals(rank: int, config: DictConfig, folder: Path) -> list[int]:
    """The steps at which a run of two processes stopped, one stop after the other, each by a signal to process 1."""
    fit(config, folder / "clean")
    reached = []
    for hook, call in SIGNALS:
        stop = Stop(hook, call, sigterm if rank == 1 else lambda: None)
        with pytest.raises(Preempted):
            fit(config, folder / "cut", stop)
        reached.append(int(files.read(folder / "cut" / LAST)["global_step"]))
    fit(config, folder / "cut")
    return reached


def test_two_processes_of_which_one_gets_the_signals(configs: dict[bool, DictConfig], tmp_path: Path) -> None:
    config = deepcopy(configs[True])
    config.trainer.devices, config.trainer.max_epochs = 2, 3
    first, second = on_ranks(partial(stopped_by_signals, config=config, folder=tmp_path))
    assert first == second == sorted(first)
    assert_same_end(tmp_path / "clean", tmp_path / "cut")
