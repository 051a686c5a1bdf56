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
from suites.doctor.slow_mount import slow_mount
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


@dataclass(frozen=True)
class Case:
    """cause: what the doctor must say. overrides: of the configuration. storage: what is wrong with it, see slow_mount.
    images: which images; beside: what goes on meanwhile."""

    cause: str
    overrides: tuple[str, ...] = ()
    storage: dict[str, float] | None = None
    images: Callable[[Path, Path], Path] = lambda sample, scratch: sample
    beside: Callable[[], Any] = nullcontext


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
            yield (*BASE, f"data.root={images}", *case.overrides)
            return
        mount = scratch / "mount"
        with slow_mount(images, mount) as control:
            folders = sum(1 for folder in mount.iterdir() for _ in folder.iterdir())
            assert folders
            tell(control, **case.storage)
            yield (*BASE, f"data.root={mount}", *case.overrides)
