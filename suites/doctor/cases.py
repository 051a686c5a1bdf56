"""Runs whose trouble is known: each is made slow in one way, on a simulated accelerator.

All train in batches of 16 on a device of 300 images/s, unless a case says otherwise.
"""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suites.doctor.huge_images import huge_images
from suites.doctor.slow_mount import CACHED, COPIES, UNCACHED, slow_mount
from suites.faults.flaky_folder import tell

BASE = (
    "rehearse=a10g",
    "callbacks.rehearsal.images_per_second=300",
    "callbacks.rehearsal.rated_images_per_second=300",
    "data.train_folder=.",
    "data.val_folder=.",
    "callbacks.rehearsal.launch_seconds=0.01",
    "data.batch_size=16",
    "data.prefetch_factor=2",
    "data.num_workers=2",
    "model=resnet18",
    "logger=[csv]",
)


def _quick(images_per_second: int) -> tuple[str, ...]:
    """A device that takes more than one CPU can decode."""
    rates = [
        f"callbacks.rehearsal.{name}={images_per_second}" for name in ("images_per_second", "rated_images_per_second")
    ]
    return (*rates, "data.batch_size=64")


QUICK = _quick(1000)
PLAIN = ("rehearse=a10g", "data.train_folder=.", "data.val_folder=.", "logger=[csv]")
"""Everything at its default: batches of 256 on a device of 900 images/s."""


def some_images(num: int) -> Callable[[Path, Path], Path]:
    """So many files, links to the sample's."""

    def images(sample: Path, scratch: Path) -> Path:
        folder = scratch / "images"
        files = sorted(file for file in sample.rglob("*") if file.is_file())
        for number in range(num):
            file = files[number % len(files)]
            link = folder / file.parent.name / f"{file.stem}_{number // len(files):02}{file.suffix}"
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(file)
        return folder

    return images


def _healthy(batch_size: int, budget: str, num_images: int, num_workers: int) -> "Case":
    """On a device that takes less than one CPU decodes."""
    rates = [f"callbacks.rehearsal.{name}=200" for name in ("images_per_second", "rated_images_per_second")]
    overrides = (*rates, f"data.batch_size={batch_size}", f"data.num_workers={num_workers}", "data.prefetch_factor=4")
    return Case("healthy", overrides, images=some_images(num_images), budget=budget)


@dataclass(frozen=True)
class Case:
    """cause: what the doctor must say. also: other causes that are as true. overrides: of the configuration. storage:
    what is wrong with it, see slow_mount; copies, kind: of that mount. images: which images; beside: what goes on
    meanwhile. budget: of the examination, None for the usual one. base: overrides that come first."""

    cause: str
    overrides: tuple[str, ...] = ()
    storage: dict[str, float] | None = None
    images: Callable[[Path, Path], Path] = lambda sample, scratch: sample
    beside: Callable[[], Any] = nullcontext
    also: tuple[str, ...] = ()
    copies: int = COPIES
    kind: str = CACHED
    budget: str | None = None
    base: tuple[str, ...] = BASE

    @property
    def right(self) -> tuple[str, ...]:
        return (self.cause, *self.also)


@contextmanager
def one_cpu() -> Iterator[None]:
    usable = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(usable)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, usable)


@contextmanager
def busy_cpus() -> Iterator[None]:
    """As many processes as CPUs that compute for themselves, none of them ours: their parent is gone."""
    command = f'{shlex.quote(sys.executable)} -c "while True: pass" > /dev/null 2>&1 & echo $!'
    others = [
        int(subprocess.run(command, shell=True, check=True, capture_output=True, text=True).stdout)
        for _ in os.sched_getaffinity(0)
    ]
    try:
        yield
    finally:
        for other in others:
            os.kill(other, signal.SIGKILL)


CASES = {
    "none": Case("healthy"),
    "storage latency": Case("storage_latency", ("data.reads_in_flight=8",), {"latency": 0.2}),
    "storage bandwidth": Case("storage_bandwidth", (), {"bytes_per_second": 15e6}),
    "lazy first touch": Case("lazy_mount", ("data.reads_in_flight=8",), {"first_touch": 0.3}),
    "too few workers": Case("few_workers", ("data.num_workers=1", *_quick(1500))),
    "one usable CPU of two": Case("few_cpus", ("data.num_workers=auto", *QUICK), beside=one_cpu),
    "huge images": Case("slow_decode", images=huge_images),
    "hidden sync": Case(
        "host_sync",
        (
            "allow_targets=[suites]",
            "+callbacks.sync={_target_: suites.doctor.faulty.HiddenSync}",
        ),
    ),
    "slow GPU": Case("slow_gpu", ("callbacks.rehearsal.images_per_second=120",)),
    "busy neighbour": Case("busy_neighbour", QUICK, beside=busy_cpus),
    "prefetch too small": Case(
        "small_prefetch",
        (
            "data.prefetch_factor=1",
            "callbacks.rehearsal.images_per_second=150",
            "callbacks.rehearsal.rated_images_per_second=150",
        ),
        {"every": 300, "late": 0.8},
    ),
    "slow logging": Case(
        "slow_logging",
        (
            "allow_targets=[suites]",
            "trainer.log_every_n_steps=1",
            "logger.csv._target_=suites.doctor.faulty.SlowLogger",
            "+logger.csv.seconds=0.15",
        ),
    ),
    "checkpoint stalls": Case(
        "checkpoint_stall",
        (
            "model=resnet50",  # its checkpoint is large, and Lightning's own callback lets training wait for the disk
            "+callbacks.waiting={_target_: lightning.pytorch.callbacks.ModelCheckpoint, every_n_train_steps: 2}",
        ),
    ),
    "defaults 12 MB a second": Case(
        "storage_bandwidth", storage={"bytes_per_second": 12e6}, copies=1, base=PLAIN, budget="20s"
    ),
    "defaults first touch 300 ms": Case(
        "lazy_mount", storage={"first_touch": 0.3, "latency": 0.002}, copies=1, base=PLAIN, budget="20s"
    ),
    # 64 requests in flight bring 640 images/s; the reader tries more, and then two CPUs may be the limit, or none: the
    # loader gave 831 images/s once, 92 % of the device's rate
    "defaults open 100 ms": Case(
        "storage_latency",
        storage={"open": 0.1},
        copies=1,
        kind=UNCACHED,
        base=PLAIN,
        budget="20s",
        also=("slow_decode", "healthy"),
    ),
    "defaults open 300 ms": Case(
        "storage_latency", storage={"open": 0.3}, copies=1, kind=UNCACHED, base=PLAIN, budget="20s"
    ),
    # 16 in flight at 50 ms bring 320 images/s; 15 MB/s are 136: more in flight bring nothing
    "latency and bandwidth": Case(
        "storage_bandwidth", ("data.reads_in_flight=8",), {"latency": 0.05, "bytes_per_second": 15e6}
    ),
    "jitter": Case("storage_latency", ("data.reads_in_flight=8",), {"latency": 0.05, "jitter": 0.15}),
    # between the stalls the storage is quick: 64 images are made ahead, for a fifth of a second, and a stall takes five
    "stalls of seconds": Case(
        "storage_latency",
        storage={"latency": 0.002, "stall": 5.0, "stall_every": 8.0},
        budget="30s",
        # In a stall more requests in flight bring nothing. On average the loader may give what the device takes, and
        # then batches made ahead would bridge the stalls.
        also=("storage_bandwidth", "small_prefetch"),
    ),
    "healthy batch 16": _healthy(16, "10s", 1000, 2),
    "healthy batch 64": _healthy(64, "15s", 5000, 1),
    "healthy batch 256": _healthy(256, "20s", 1000, 2),
    "healthy batch 512": _healthy(512, "30s", 2000, 4),
    "healthy 300 files": _healthy(128, "15s", 300, 2),
    "healthy 8 workers": _healthy(32, "10s", 1000, 8),
    "healthy 90 s": _healthy(32, "90s", 5000, 2),
}
"""What was done -> the run."""


@contextmanager
def arranged(case: Case, sample: Path, scratch: Path) -> Iterator[tuple[str, ...]]:
    """Overrides of a run that suffers from the case, as long as this is entered. Raises NotTried without FUSE.

    sample: folder with a folder of JPEGs for each class. scratch: an empty folder.
    """
    images = case.images(sample, scratch)
    with case.beside():
        if case.storage is None:
            yield (*case.base, f"data.root={images}", *case.overrides)
            return
        mount = scratch / "mount"
        with slow_mount(images, mount, case.copies, case.kind) as control:
            folders = sum(1 for folder in mount.iterdir() for _ in folder.iterdir())
            assert folders
            tell(control, **case.storage)
            yield (*case.base, f"data.root={mount}", *case.overrides)
