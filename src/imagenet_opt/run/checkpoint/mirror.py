"""A copy of a run's newest checkpoints in an object storage, so that the run survives the loss of its machine.

    URL/checkpoints/step_00012000.ckpt   the newest `keep`, named as in the run folder
    URL/best.ckpt, metrics.csv, ...      files of the run folder
    URL/last.json                        names the newest checkpoint; written after all others

These functions run in a process of their own (`mirror_process.call`), so this module imports no torch. Arguments and
results are values of JSON.
"""

import json
import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from imagenet_opt.atomic_file import replacing
from imagenet_opt.display.progress import progress
from imagenet_opt.errors import CheckpointError, CheckpointNotFound, ConfigError, RunFolderError
from imagenet_opt.object_storage import FoundObject, ObjectStorage, is_url, is_web

KEY = "checkpoint.mirror"
BEST = "best.ckpt"
LAST = "last.json"
_PROBE = "write_probe"
_NAME = r"^checkpoints/step_[0-9]{8,18}\.ckpt$"
_PIECE_BYTES = 16 * 2**20

_Count = Annotated[int, Field(ge=0)]


@dataclass(frozen=True)
class Content:
    """Size in bytes and CRC-32 of a file."""

    size: _Count
    crc32: _Count


@dataclass(frozen=True)
class Last:
    """The newest checkpoint of a mirror. name: path below the URL. best: the content of best.ckpt, if there is one."""

    step: _Count
    name: Annotated[str, Field(pattern=_NAME)]
    content: Content
    best: Content | None


LAST_FIELDS = TypeAdapter(Last)


def check_url(url: object) -> None:
    """Raise ConfigError unless checkpoints can be uploaded to `url`."""
    if not is_url(url) or is_web(str(url)):
        raise ConfigError(
            f"{KEY}={url} is no bucket; expected s3://BUCKET/FOLDER or gs://BUCKET/FOLDER. For a mirror in another "
            "folder, set hydra.run.dir to that folder"
        )


def probe(storage: ObjectStorage) -> None:
    """Write and remove a small object. Raises StorageFailed or ConfigError if the mirror cannot be written."""
    storage.write(_PROBE, b"written by imagenet-opt when a run starts\n")
    storage.delete(_PROBE)


def last(storage: ObjectStorage) -> dict[str, Any] | None:
    """The fields of `Last`; None if the mirror has no checkpoint."""
    found = _read_last(storage)
    return None if found is None else asdict(found)


def upload(
    storage: ObjectStorage, *, step: int, name: str, checkpoint: str, best: str | None, others: list[str], keep: int
) -> None:
    """Upload a checkpoint, and remove the later steps and those beyond the newest `keep`.

    name: of the checkpoint in the mirror. checkpoint, best, others: local files; `others` keep their names. A
    checkpoint that the mirror has already is not sent again. Sizes are compared after the upload. The CRC-32 of a
    checkpoint is compared when it is downloaded, since reading it back would double the traffic, and the tags of
    services are checksums for small, plainly stored objects only.
    """
    before = _read_last(storage)
    now = Last(step, name, _content(checkpoint), None if best is None else _content(best))
    if before is None or (before.name, before.content) != (name, now.content) or storage.head(name) is None:
        storage.upload(name, Path(checkpoint))
    if best is not None and now.best is not None and (before is None or before.best != now.best):
        if now.best == now.content:
            storage.copy(name, BEST)
        else:
            storage.upload(BEST, Path(best))
    for other in map(Path, others):
        storage.write(other.name, other.read_bytes())
    if now != before:
        storage.write(LAST, json.dumps(asdict(now), indent=2).encode() + b"\n")
    _remove_others(storage, name, keep)


def head(storage: ObjectStorage, *, name: str) -> dict[str, Any]:
    """Size in bytes and tag of a checkpoint. Raises CheckpointNotFound."""
    found = storage.head(name)
    if found is None:
        raise CheckpointNotFound(
            f"no checkpoint at {storage.name(name)} ({storage.key}); expected a .ckpt object, or a mirror with {LAST}"
        )
    return found._asdict()


def download(
    storage: ObjectStorage,
    *,
    files: list[tuple[str, str, dict[str, int] | None]],
    folder_key: str = "hydra.run.dir",
) -> None:
    """Download files, each written beside its target and renamed. files: name in the mirror, target, and the fields of
    the expected `Content`; None for any content, and for a file that the mirror need not have. folder_key: what sets
    the folder of the targets.

    Raises CheckpointError if the content differs; RunFolderError if a target cannot be written.
    """
    for name, target, content in files:
        if content is not None or storage.head(name) is not None:
            try:
                _download(storage, name, Path(target), None if content is None else Content(**content))
            except OSError as error:
                raise RunFolderError(
                    f"cannot write {target} ({error.strerror}); make room there, or choose another folder with "
                    f"{folder_key}"
                ) from error


def _read_last(storage: ObjectStorage) -> Last | None:
    try:
        return LAST_FIELDS.validate_json(storage.read(LAST))
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise CheckpointError(
            f"{storage.name(LAST)} is damaged, or another program wrote it; choose another {storage.key}, or a "
            f"checkpoint there with {_other(storage)}"
        ) from error


def _content(path: str) -> Content:
    crc32 = 0
    with open(path, "rb") as file:
        while piece := file.read(2**20):
            crc32 = zlib.crc32(piece, crc32)
        return Content(os.fstat(file.fileno()).st_size, crc32)


def _remove_others(storage: ObjectStorage, name: str, keep: int) -> None:
    steps = sorted(
        (found.path for portion in storage.objects("checkpoints") for found in portion if re.match(_NAME, found.path)),
        key=lambda path: int(re.sub(r"\D", "", path)),
    )
    place = steps.index(name) + 1
    for old in (*steps[place:], *steps[: max(0, place - keep)]):
        storage.delete(old)


def _download(storage: ObjectStorage, name: str, target: Path, content: Content | None) -> None:
    with storage.explained():
        found = storage.head(name)
    if found is None or (content is not None and found.size != content.size):
        raise _differs(storage, name)
    crc32 = 0
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target, sync=True) as fresh, fresh.open("wb") as file:
        for piece in _pieces(storage, found):
            crc32 = zlib.crc32(piece, crc32)
            file.write(piece)
        if content is not None and crc32 != content.crc32:
            raise _differs(storage, name)


def _pieces(storage: ObjectStorage, found: FoundObject) -> Iterator[bytes]:
    with progress(f"downloading {storage.name(found.path)}", "MB") as show:
        for start in range(0, found.size, _PIECE_BYTES):
            with storage.explained():
                size = min(_PIECE_BYTES, found.size - start)
                piece = storage.read(found.path, start=start, size=size, etag=found.etag)
            yield piece
            show((start + size) // 10**6, found.size // 10**6)


def _differs(storage: ObjectStorage, name: str) -> CheckpointError:
    return CheckpointError(
        f"{storage.name(name)} differs from what {LAST} says: it is damaged or was replaced. Choose another "
        f"checkpoint there with {_other(storage)}"
    )


def _other(storage: ObjectStorage) -> str:
    """The words that choose another checkpoint of this mirror."""
    return f"{'ckpt' if storage.key == 'ckpt' else 'resume_from'}={storage.url}/checkpoints/step_N.ckpt"
