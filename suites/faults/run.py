"""One process of train.py, watched only from outside."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.test_train import metrics

STEPS_PER_EPOCH = 9
PATIENCE_SECONDS = 300


def reached(run_folder: Path) -> int:
    """Steps done, as the last whole row of metrics.csv has it."""
    try:
        with (run_folder / "metrics.csv").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
            whole = file.read().split(b"\n")[1:-1]
    except OSError:
        return 0
    return int(whole[-1].split(b",")[0]) + 1 if whole and whole[-1][:1].isdigit() else 0


class Run:
    """The output is in `folder`/N.out and N.err; `seen` is the run folder."""

    def __init__(self, command: list[str], environment: dict[str, str], folder: Path, number: int, seen: Path) -> None:
        self.seen, self.out, self.err = seen, folder / f"{number}.out", folder / f"{number}.err"
        self.reached_before = reached(seen)
        self.began, self.recovered_at = time.time(), 0.0
        with self.out.open("w") as out, self.err.open("w") as err:
            self.process = psutil.Popen(
                command,
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
        self._wait(condition, timeout)
        if not condition():
            assert self.process.poll() is None, f"ended with {self.process.returncode} before {what}"
            raise AssertionError(f"no {what} within {timeout:g} s")

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
        last = metrics(self.seen)[-1]
        at_end = (int(last["step"]) + 1) % STEPS_PER_EPOCH == 0
        return "validation" if at_end and not last.get("val/acc1") else "training"

    def wait(self, timeout: float = PATIENCE_SECONDS) -> int:
        """The exit status; -9 for one that was killed by that signal."""
        self._wait(lambda: False, timeout)
        if self.process.returncode is None:
            self.kill()
            raise AssertionError(f"still running after {timeout:g} s")
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
        self._wait(lambda: False, seconds)
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
        alive = [process for process in psutil.process_iter(["status"]) if process.info["status"] != "zombie"]
        return [process for process in alive if _session(process.pid) == self.process.pid]

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

    def _wait(self, condition: Callable[[], bool], seconds: float) -> None:
        """Until the condition is true, the process has ended, or the time has passed."""
        deadline = time.monotonic() + seconds
        while not condition() and self.process.poll() is None and time.monotonic() < deadline:
            if not self.recovered_at and reached(self.seen) > self.reached_before:
                self.recovered_at = time.time()
            time.sleep(0.01)


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return -1
