"""Real runs of train.py in processes of their own, on a tiny data set, watched only from outside.

A Lab has the data and the clean runs; a Trial is one try of one case: a run folder and all that was started in it.
"""

import os
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from suites.faults.run import STEPS_PER_EPOCH, Run
from tests.conftest import write_images
from tests.test_train import REPOSITORY, assert_same, metrics, opened

EPOCHS = 12
TINY = (
    "model.name=test_resnet",
    "data.image_size=32",
    "data.batch_size=8",
    "data.num_workers=2",
    "trainer.accelerator=cpu",
    "trainer.devices=1",
    "trainer.precision=32-true",
    "trainer.deterministic=true",
    f"trainer.max_epochs={EPOCHS}",
    "trainer.log_every_n_steps=1",
    "schedule.warmup_epochs=1",
    "callbacks.checkpoint.every_n_steps=4",
    "callbacks.mixing.mode=on",
    "callbacks.ema.decay=0.9998",
    "logger=csv",
)


class Trial:
    """One try of one case."""

    def __init__(self, lab: "Lab", name: str, number: int, kills: int, epochs: int = EPOCHS):
        self.lab, self.kills, self.epochs = lab, kills, epochs
        self.folder = lab.workdir / f"{name}_{number}"
        self.folder.mkdir(parents=True)
        self.random = random.Random(f"{name} {number}")
        self.run_folder = self.seen = self.folder / "run"
        self.root, self.overrides, self.prefix = lab.images, list[str](), list[str]()
        self.starts: list[Run] = []

    def start(self, *changes: str, **environment: str) -> Run:
        """The command of this trial, the same each time but for `changes`."""
        overrides = [f"trainer.max_epochs={self.epochs}", *self.overrides, *changes]
        command = [sys.executable, str(REPOSITORY / "train.py"), f"data.root={self.root}", *TINY, *overrides]
        command += [f"hydra.run.dir={self.run_folder}"]
        variables = self.lab.environment | environment
        run = Run([*self.prefix, *command], variables, self.folder, len(self.starts), self.seen)
        self.starts.append(run)
        return run

    def started(self, *changes: str, **environment: str) -> Run:
        """A run that has come to some random step in its first half."""
        run = self.start(*changes, **environment)
        run.until_step(self.random.randint(10, self.epochs * STEPS_PER_EPOCH // 2))
        return run

    def own_images(self) -> Path:
        """A copy of the images that may be damaged."""
        self.root = Path(shutil.copytree(self.lab.images, self.folder / "images"))
        return self.root

    def goes_on(self, *words: str) -> Run:
        """The same command again runs to the end, says `words`, and the end is the clean run's to the last bit."""
        run = self.start().ends(0, *words)
        self.is_like_clean()
        return run

    def is_like_clean(self) -> None:
        """Asserts that checkpoint and metrics are those of a run that nothing happened to."""
        clean = self.lab.clean(self.epochs, *self.overrides).run_folder
        assert_same(opened(clean / "last.ckpt"), opened(self.seen / "last.ckpt"), "last.ckpt")
        wanted, got = metrics(clean), metrics(self.seen)
        assert [row["step"] for row in wanted] == [row["step"] for row in got], "metrics.csv has other steps"
        assert wanted == got, "metrics.csv has other values"

    @property
    def lost_steps(self) -> int:
        """Most steps that a restart had to do again."""
        return max((run.lost_steps for run in self.starts[1:]), default=0)

    @property
    def recover_seconds(self) -> list[float]:
        """Of all restarts that came past where the run before was stopped."""
        return [run.recover_seconds for run in self.starts[1:] if run.recover_seconds]

    def clear_up(self) -> None:
        for run in self.starts:
            run.clear_up()


class Lab:
    """The data, and the runs to compare with."""

    def __init__(self, workdir: Path) -> None:
        self.workdir = workdir
        self.images = write_images(workdir / "images", num_classes=3, per_class=3 * 8)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
        self.environment = inherited | {
            "XDG_CACHE_HOME": str(workdir / "cache"),
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }
        self._clean: dict[tuple[object, ...], Trial] = {}

    def clean(self, epochs: int = EPOCHS, *overrides: str) -> Trial:
        """The clean run of these overrides, finished; each runs once."""
        key = (epochs, *overrides)
        if key not in self._clean:
            trial = self._clean[key] = Trial(self, "clean", len(self._clean), kills=0, epochs=epochs)
            trial.overrides = list(overrides)
            trial.start()
        self._clean[key].starts[0].ends(0)
        return self._clean[key]

    def clear_up(self) -> None:
        for trial in self._clean.values():
            trial.clear_up()


class Case(NamedTuple):
    """`attempt` makes the fault, asserts how it ends and returns that in words; it may raise NotTried."""

    title: str
    attempt: Callable[[Trial], str]


CASES: dict[str, Case] = {}


def case(title: str) -> Callable[[Callable[[Trial], str]], Callable[[Trial], str]]:
    def register(attempt: Callable[[Trial], str]) -> Callable[[Trial], str]:
        CASES[attempt.__name__] = Case(title, attempt)
        return attempt

    return register
