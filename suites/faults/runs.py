"""Real runs of train.py in processes of their own, on a tiny data set, watched only from outside.

A Lab has the data and the clean runs; a Trial is one try of one case: a run folder and all that was started in it; a
Run is one process.
"""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from suites.faults.results import differences, opened, reached, rows
from tests.conftest import write_images

REPOSITORY = Path(__file__).parents[2]
STEPS_PER_EPOCH = 9
EPOCHS = 12
PATIENCE_SECONDS = 300
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
    "checkpoint.every_n_steps=4",
    "callbacks.mixing.mode=on",
    "+callbacks=ema",
    "logger=csv",
)


class Run:
    """One process of train.py. Its output is in `folder`/N.out and N.err; `seen` is the run folder."""

    def __init__(
        self,
        command: Sequence[str],
        environment: dict[str, str],
        folder: Path,
        number: int,
        seen: Path,
        popen: Callable[..., Any] = psutil.Popen,
    ):
        self.seen, self.out, self.err = seen, folder / f"{number}.out", folder / f"{number}.err"
        self.reached_before = reached(seen)
        self.began, self.recovered_at = time.time(), 0.0
        with self.out.open("w") as out, self.err.open("w") as err:
            self.process = popen(
                list(command),
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self.out.read_text() + self.err.read_text()

    @property
    def errors(self) -> list[str]:
        """What was said on stderr, without the progress."""
        lines = self.err.read_text().splitlines()
        return [line for line in lines if line.strip() and not re.match(r"epoch \d+ ", line.strip())]

    @property
    def resumed_at(self) -> int:
        """The step of the checkpoint that it went on from."""
        found = re.search(r"resuming from .* at step (\d+)", self.output)
        return int(found[1]) if found else 0

    @property
    def lost_steps(self) -> int:
        """Steps that the run before had done and this one does again."""
        return max(0, self.reached_before - self.resumed_at)

    @property
    def recover_seconds(self) -> float:
        """From the start until the run is past where the one before was stopped; 0 if it never was."""
        return self.recovered_at - self.began if self.recovered_at else 0.0

    def until(self, condition: Callable[[], bool], what: str, timeout: float = PATIENCE_SECONDS) -> None:
        """Wait for `condition`; an AssertionError says what was not reached."""
        deadline = time.monotonic() + timeout
        while not condition():
            self._watch()
            assert self.process.poll() is None, f"ended with {self.process.returncode} before {what}"
            assert time.monotonic() < deadline, f"no {what} within {timeout:g} s"
            time.sleep(0.02)

    def until_step(self, step: int) -> None:
        """Until so many steps of the whole run are done: more than there were when this process started."""
        assert step > self.reached_before
        self.until(lambda: reached(self.seen) >= step, f"step {step}")

    def place(self) -> str:
        """What it was doing, as far as its folder tells."""
        files = [file for file in self.seen.rglob("*") if file.is_file() and file.stat().st_mtime > self.began]
        if not any(file.name == "metrics.csv" for file in files) or reached(self.seen) <= self.resumed_at:
            return "start-up"
        if any(re.match(r"\..*ckpt|.*(new|tmp|part)", file.name) for file in files):
            return "saving"
        last = rows(self.seen)[-1]
        at_end = (int(last["step"]) + 1) % STEPS_PER_EPOCH == 0
        return "validation" if at_end and "val/acc1" not in last else "training"

    def wait(self, timeout: float = PATIENCE_SECONDS) -> int:
        """The exit status; -9 for one that was killed by that signal."""
        deadline = time.monotonic() + timeout
        while self.process.poll() is None:
            self._watch()
            if time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"still running after {timeout:g} s")
            time.sleep(0.02)
        return int(self.process.returncode)

    def ends(self, status: int, *words: str) -> "Run":
        """Asserts how it ended: the status, and words (patterns) in the last line on stderr, or anywhere if it is 0."""
        got, last = self.wait(), (self.errors or [""])[-1]
        assert got == status, f"exit status {got}, expected {status}: {last}"
        assert "Traceback" not in self.err.read_text(), f"a traceback: {last}"
        for word in words:
            text = self.output if status == 0 else last
            assert re.search(word, text, re.IGNORECASE), f"nothing about {word!r}: {last}"
        return self

    def send(self, number: int, *, to_all: bool) -> None:
        """A signal to the process alone, or to all of its session as a terminal and SLURM do."""
        os.killpg(self.process.pid, number) if to_all else self.process.send_signal(number)

    def wait_or_kill(self, seconds: float, *, all_of_it: bool = True) -> None:
        """kill -9 after so many seconds, unless it has ended before."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.process.poll() is None:
            time.sleep(0.005)
        self.kill(all_of_it=all_of_it)

    def kill(self, *, all_of_it: bool = True) -> None:
        """kill -9. Without `all_of_it` its workers are left alone, until they notice."""
        if self.process.poll() is None:
            self.send(signal.SIGKILL, to_all=all_of_it)
        self.process.wait()

    def clear_up(self) -> None:
        """Nothing of it is left behind."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self.process.wait()

    def members(self) -> list[psutil.Process]:
        """Processes of its session that are alive."""
        pids = [pid for pid in psutil.pids() if _session(pid) == self.process.pid]
        return [p for pid in pids if (p := _process(pid)) is not None and p.status() != psutil.STATUS_ZOMBIE]

    def workers(self) -> list[psutil.Process]:
        """Its loader processes, which are forks."""
        own = self.process.cmdline()
        return [p for p in self.process.children() if p.cmdline() == own and p.exe() == self.process.exe()]

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stands still, so that a fault comes between two moments of the run however fast it is."""
        os.killpg(self.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(self.process.pid, signal.SIGCONT)

    def _watch(self) -> None:
        if not self.recovered_at and reached(self.seen) > self.reached_before:
            self.recovered_at = time.time()


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
        run = Run(
            [*self.prefix, *command],
            self.lab.environment | environment,
            self.folder,
            len(self.starts),
            self.seen,
            self.lab.popen,
        )
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
        found = list(differences(opened(clean / "last.ckpt"), opened(self.seen / "last.ckpt")))
        assert not found, f"last.ckpt differs in {len(found)} places: {', '.join(found[:3])}"
        wanted, got = rows(clean), rows(self.seen)
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
    """The data, and the runs to compare with. popen: what starts the processes of runs."""

    def __init__(self, workdir: Path, popen: Callable[..., Any] = psutil.Popen):
        self.workdir, self.popen = workdir, popen
        self.images = write_images(workdir / "images", num_classes=3, per_class=3 * 8)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
        self.environment = inherited | {
            "XDG_CACHE_HOME": str(workdir / "cache"),
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }
        self._clean: dict[tuple[object, ...], Trial] = {}

    def begin_clean(self, epochs: int = EPOCHS, *overrides: str) -> Trial:
        """Starts the clean run of these overrides, once."""
        key = (epochs, *overrides)
        if key not in self._clean:
            trial = self._clean[key] = Trial(self, "clean", len(self._clean), kills=0, epochs=epochs)
            trial.overrides = list(overrides)
            trial.start()
        return self._clean[key]

    def clean(self, epochs: int = EPOCHS, *overrides: str) -> Trial:
        """The clean run of these overrides, finished."""
        trial = self.begin_clean(epochs, *overrides)
        trial.starts[0].ends(0)
        return trial

    def clear_up(self) -> None:
        for trial in self._clean.values():
            trial.clear_up()


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return -1


def _process(pid: int) -> psutil.Process | None:
    try:
        return psutil.Process(pid)
    except psutil.NoSuchProcess:
        return None
