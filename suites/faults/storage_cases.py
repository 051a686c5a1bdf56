"""Images, their index and their shards vanish, fail, hang or are damaged; shared memory is full."""

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from suites.faults.flaky_folder import flaky_folder, tell
from suites.faults.process_cases import IDENTICAL
from suites.faults.run import Run
from suites.faults.runs import Trial, case
from suites.faults.small_disk import small_disk

ONE_LINE = r"^\w+: "


@case("files vanish, turn unreadable, become garbage in mid-epoch")
def files_vanish(trial: Trial) -> str:
    gone, folder, garbage = sorted(trial.own_images().glob("train/*/*.JPEG"))[::30]
    run = trial.started("data.max_bad_fraction=0.1")
    with run.paused():
        gone.unlink()
        folder.unlink()
        folder.mkdir()  # a reader that is root may read what it has no permission for
        garbage.write_bytes(b"no image")
    run.ends(0)
    for file in (gone, folder, garbage):
        told = sum("skipped" in line and str(file) in line for line in run.output.splitlines())
        assert told == 1, f"{file} is told {told} times"
    return "skipped, each with one warning"


@case("the folder of images goes away")
def folder_goes_away(trial: Trial) -> str:
    root = trial.own_images()
    run = trial.started()
    away = root.rename(root.with_name("away"))
    run.ends(2, ONE_LINE)
    away.rename(root)
    trial.goes_on()
    return f"explained: {run.errors[-1].split(':')[0]}; {IDENTICAL}"


@case("transient EIO and ESTALE, one read in twenty")
def transient_errors(trial: Trial) -> str:
    with flaky_folder(trial.lab.images, trial.folder / "mount") as control:
        trial.root = control.with_suffix("")
        run = trial.start()
        for step, number in ((5, errno.EIO), (50, errno.ESTALE)):
            run.until_step(step)
            tell(control, errno=number, share=0.05)
        run.ends(0)
    trial.is_like_clean()
    return "read again, bit-identical"


@case("the storage fails altogether")
def storage_fails(trial: Trial) -> str:
    with flaky_folder(trial.lab.images, trial.folder / "mount") as control:
        trial.root = control.with_suffix("")
        run = trial.started()
        tell(control, errno=errno.EIO)
        run.ends(2, "^StorageFailed: .*mount")
        tell(control)
        trial.goes_on()
    return f"explained: StorageFailed; {IDENTICAL}"


@contextmanager
def _hanging(trial: Trial, name: str, **hang: float) -> Iterator[tuple[Run, Path]]:
    """A run that waits for the file `name`, and what tells when that ends."""
    with flaky_folder(trial.lab.images, trial.folder / "mount") as control:
        trial.root = control.with_suffix("")
        run = trial.started("data.read_timeout=2")
        tell(control, name=name, **hang)
        run.until(lambda: "no answer for 2 s" in run.output, "a warning")
        yield run, control


@case("a read hangs for 3 s, the time-out is 2 s")
def read_hangs_shortly(trial: Trial) -> str:
    with _hanging(trial, "class1/image005", hang=3, times=1) as (run, _):
        run.ends(0)
    trial.is_like_clean()
    return "warns, asks again, bit-identical"


@case("a read hangs for good")
def read_hangs(trial: Trial) -> str:
    with _hanging(trial, "class1/image005", hang=20) as (run, control):  # a process ends once its reads are answered
        run.ends(2, "^ReadTimeout: .*class1/image005")
        tell(control)
        trial.goes_on()
    return f"explained: ReadTimeout; {IDENTICAL}"


@case("/dev/shm fills up")
def shared_memory_fills(trial: Trial) -> str:
    with small_disk(Path("/dev/shm"), 32_000_000) as memory:
        trial.prefix = memory.prefix
        run = trial.started()
        with run.paused():
            memory.fill()
        return _survived_or_explained(trial, run, memory.free)


@case("/dev/shm is too small from the start")
def shared_memory_small(trial: Trial) -> str:
    with small_disk(Path("/dev/shm"), 128 * 1024) as memory:
        trial.prefix = memory.prefix
        run = trial.start()
        return _survived_or_explained(trial, run, lambda: trial.prefix.clear())


def _survived_or_explained(trial: Trial, run: Run, fix: Callable[[], None]) -> str:
    """Ends well and like a clean run, or with one line and, fixed, goes on."""
    if run.wait() == 0:
        trial.is_like_clean()
        return IDENTICAL
    run.ends(2, ONE_LINE)
    fix()
    trial.goes_on()
    return f"explained: {run.errors[-1].split(':')[0]}; {IDENTICAL}"
