"""Checks whether a run saves itself in the time between the notice of a spot machine and its end."""

import os
import shutil
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

from imagenet_opt.check.result import CheckResult
from imagenet_opt.errors import ImagenetOptError
from imagenet_opt.measure.storage.page_cache import drop_pages
from imagenet_opt.object_storage import ObjectStorage
from imagenet_opt.run.checkpoint.mirror import KEY

CHECK = "spot notice"
NOTICE_SECONDS = 120
"""Of EC2 (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html)."""
_OTHER_SECONDS = 30
"""For the step in progress, and for W&B, which has up to 20 s for its last rows."""
_SAMPLE_BYTES = 64 * 2**20
"""A larger checkpoint takes in proportion longer than a file of this size."""
_SAVES = 2
"""A notice may come when another save has just begun, which the last save waits for."""


def judge_spot_notice(
    num_bytes: int,
    folder: Path,
    mirror: str | None = None,
    *,
    poll_seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> CheckResult:
    """Whether a checkpoint of `num_bytes` is on the disk, and in the bucket, before the machine goes.

    folder: the run folder; if it does not exist yet, the nearest folder above is measured. mirror: URL of
    checkpoint.mirror. poll_seconds: time until the run sees the notice. Writes and removes a file in the folder, and an
    object below the URL.
    """
    folder = next(place for place in (folder, *folder.resolve().parents) if place.is_dir())
    sample = os.urandom(min(max(num_bytes, 1), _SAMPLE_BYTES))
    scale = num_bytes / len(sample)
    try:
        if (free := shutil.disk_usage(folder).free) < num_bytes:
            raise OSError(f"a checkpoint has {num_bytes / 1e6:.0f} MB, and {free / 1e6:.0f} MB are free")
        write = scale * _write_seconds(folder, sample, clock)
    except OSError as error:
        text = f"{folder} takes no checkpoint ({error.strerror or error}); choose another folder with hydra.run.dir"
        return CheckResult(CHECK, "warning", text)
    try:
        upload = 0.0 if mirror is None else scale * _upload_seconds(mirror, sample, clock)
    except (OSError, ImagenetOptError) as error:
        return CheckResult(CHECK, "warning", f"no checkpoint can be uploaded to {KEY}: {error}")
    return _judge(num_bytes, folder, mirror, write, upload, _OTHER_SECONDS + poll_seconds)


def _judge(
    num_bytes: int, folder: Path, mirror: str | None, write: float, upload: float, other_seconds: float
) -> CheckResult:
    seconds = _SAVES * (write + upload) + other_seconds
    uploaded = "" if mirror is None else f" and {upload:.1f} s to upload to {mirror}"
    text = (
        f"{seconds:.0f} of {NOTICE_SECONDS} s: {num_bytes / 1e6:.0f} MB take {write:.1f} s to write and verify in "
        f"{folder}{uploaded}, twice if a save has just begun; {other_seconds:.0f} s more for the poll, the step and "
        "loggers"
    )
    if seconds <= NOTICE_SECONDS:
        return CheckResult(CHECK, "ok", text)
    place = "hydra.run.dir on a local disk" if write >= upload else f"{KEY} in the region of the machine"
    return CheckResult(
        CHECK,
        "warning",
        f"{text}. A run would lose the steps since its last save: set {place}, or a smaller checkpoint.every_minutes",
    )


def _write_seconds(folder: Path, sample: bytes, clock: Callable[[], float]) -> float:
    """Seconds to write, sync and read back a file, as the checkpoint's writer does."""
    file = folder / f".imagenet_opt_check_{uuid4().hex}"
    began = clock()
    try:
        with file.open("wb") as stream:
            stream.write(sample)
            stream.flush()
            os.fsync(stream.fileno())
            drop_pages(stream.fileno())
        zlib.crc32(file.read_bytes())
        return clock() - began
    finally:
        file.unlink(missing_ok=True)


def _upload_seconds(mirror: str, sample: bytes, clock: Callable[[], float]) -> float:
    storage = ObjectStorage(mirror, KEY, retries=False)
    name = f".imagenet_opt_check_{uuid4().hex}"
    began = clock()
    storage.write(name, sample)
    seconds = clock() - began
    storage.delete(name)
    return seconds
