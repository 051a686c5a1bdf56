"""Runs with a known cause: each is slow in one way, on a simulated accelerator.

Unless a case differs, a run trains in batches of 16 on a device of 300 images/s.
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

from PIL import Image

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
    "model.name=resnet18",
    "logger=[csv]",
)


def _device(images_per_second: int) -> list[str]:
    names = ("images_per_second", "rated_images_per_second")
    return [f"callbacks.rehearsal.{name}={images_per_second}" for name in names]


def _quick(images_per_second: int) -> tuple[str, ...]:
    """A device that trains more images per second than one CPU decodes."""
    return (*_device(images_per_second), "data.batch_size=64")


QUICK = _quick(1000)
PLAIN = ("rehearse=a10g", "data.train_folder=.", "data.val_folder=.", "logger=[csv]")
"""Defaults: batches of 256 on a device of 900 images/s."""


def some_images(num: int) -> Callable[[Path, Path], Path]:
    """A folder of `num` links to files of the sample."""

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


_HUGE_SIZE = (4000, 3000)
_NUM_CLASSES = 80


def huge_folder(sample: Path) -> Path:
    return sample.with_name(f"{sample.name}-huge")


def huge_images(sample: Path, scratch: Path) -> Path:
    """Some images of the sample, enlarged to 12 megapixels once, in a folder beside the sample."""
    folder = huge_folder(sample)
    for source in sorted(path for path in sample.iterdir() if path.is_dir())[:_NUM_CLASSES]:
        target = folder / source.name
        for file in sorted(source.iterdir())[:2]:
            if not (target / file.name).exists():
                target.mkdir(parents=True, exist_ok=True)
                with Image.open(file) as image:
                    image.convert("RGB").resize(_HUGE_SIZE, Image.Resampling.BILINEAR).save(
                        target / file.name, quality=90
                    )
    return folder


def _healthy(batch_size: int, budget: str, num_images: int, num_workers: int) -> "Case":
    """A device that trains fewer images per second than one CPU decodes."""
    overrides = (
        *_device(200),
        f"data.batch_size={batch_size}",
        f"data.num_workers={num_workers}",
        "data.prefetch_factor=4",
    )
    return Case("healthy", overrides, images=some_images(num_images), budget=budget)


@dataclass(frozen=True)
class Case:
    """cause: the verdict that the doctor must give. also: other right verdicts. base, overrides: of the configuration,
    in this order. storage: settings of slow_mount; copies, kind: of that mount. images: makes the folder of images.
    beside: what happens during the examination. budget: of the examination; None for the usual budget."""

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
    """One computing process per CPU. Their parent has ended, so they are not descendants of the doctor."""
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
    # Beside one worker, the launches on two CPUs sometimes allow hardly more than this worker decodes.
    "too few workers": Case("few_workers", ("data.num_workers=1", *_quick(1500)), also=("balanced",)),
    "one usable CPU of two": Case("few_cpus", ("data.num_workers=auto", *QUICK), beside=one_cpu),
    "huge images": Case("slow_decode", images=huge_images),
    "hidden sync": Case(
        "host_sync", ("allow_targets=[suites]", "+callbacks.sync={_target_: suites.doctor.faulty.HiddenSync}")
    ),
    "slow GPU": Case("slow_gpu", ("callbacks.rehearsal.images_per_second=120",)),
    "busy neighbour": Case("busy_neighbour", QUICK, beside=busy_cpus),
    "prefetch too small": Case(
        "small_prefetch", ("data.prefetch_factor=1", *_device(150)), {"every": 300, "late": 0.8}
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
            "model.name=resnet50",  # a large checkpoint, and training waits until Lightning's callback has written it
            "+callbacks.waiting={_target_: lightning.pytorch.callbacks.ModelCheckpoint, every_n_train_steps: 2}",
        ),
    ),
    "defaults 12 MB a second": Case(
        "storage_bandwidth", storage={"bytes_per_second": 12e6}, copies=1, base=PLAIN, budget="20s"
    ),
    "defaults first touch 300 ms": Case(
        "lazy_mount", storage={"first_touch": 0.3, "latency": 0.002}, copies=1, base=PLAIN, budget="20s"
    ),
    # 64 requests in flight give 640 images/s. The reader tries more, and then two CPUs may be the limit, or nothing is:
    # the loader once gave 831 images/s, 92 % of the device's rate.
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
    # 16 requests in flight at 50 ms give 320 images/s, but 15 MB/s are only 136 images/s.
    "latency and bandwidth": Case(
        "storage_bandwidth", ("data.reads_in_flight=8",), {"latency": 0.05, "bytes_per_second": 15e6}
    ),
    "jitter": Case("storage_latency", ("data.reads_in_flight=8",), {"latency": 0.05, "jitter": 0.15}),
    # Between the stalls the storage is fast. The 64 images made ahead last for 0.2 s, and a stall takes 5 s.
    "stalls of seconds": Case(
        "storage_latency",
        storage={"latency": 0.002, "stall": 5.0, "stall_every": 8.0},
        budget="30s",
        # During a stall, more requests in flight give nothing. On average the loader may be as fast as the device; then
        # more batches made ahead would bridge the stalls.
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
"""What was done to the run -> the run."""


@contextmanager
def arranged(case: Case, sample: Path, scratch: Path) -> Iterator[tuple[str, ...]]:
    """Overrides of a run of the case; its fault lasts as long as the context. Raises NotTried without FUSE.

    sample: folder with a folder of JPEGs for each class. scratch: an empty folder.
    """
    images = case.images(sample, scratch)
    with case.beside():
        if case.storage is None:
            yield (*case.base, f"data.root={images}", *case.overrides)
            return
        mount = scratch / "mount"
        with slow_mount(images, mount, case.copies, case.kind) as control:
            assert list(mount.glob("*/*"))
            tell(control, **case.storage)
            yield (*case.base, f"data.root={mount}", *case.overrides)
