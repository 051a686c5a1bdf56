"""Finds the checkpoint to resume from in the run folder and in its mirror, and downloads it."""

import logging
import os
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from lightning.fabric.utilities.rank_zero import rank_zero_only

from imagenet_opt.errors import CheckpointError, CheckpointNotFound, ImagenetOptError, RunFolderError
from imagenet_opt.object_storage import is_url
from imagenet_opt.run.checkpoint import files, mirror
from imagenet_opt.run.checkpoint.mirror import LAST_FIELDS, Last
from imagenet_opt.run.checkpoint.mirror_process import call
from imagenet_opt.run.checkpoint.uploads import OTHERS

log = logging.getLogger(__name__)

_WAIT_SECONDS = 600
_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Found:
    """The checkpoint to resume from; None for a new run. source: the URL from which it was downloaded now.
    downloaded: the files that are new in the run folder."""

    path: Path | None
    source: str | None = None
    downloaded: list[Path] = field(default_factory=list)

    @contextmanager
    def removed_if_refused(self) -> Iterator[None]:
        """Remove the downloaded files after an ImagenetOptError; a CheckpointError then names the URL too."""
        try:
            yield
        except ImagenetOptError as error:
            for file in self.downloaded:
                file.unlink(missing_ok=True)
            if self.path is not None and self.path.parent.name == files.FOLDER:
                with suppress(OSError):  # not empty
                    self.path.parent.rmdir()
            if self.source is None or not isinstance(error, CheckpointError):
                raise
            raise type(error)(f"the checkpoint from {self.source}: {error}") from error


def find(resume_from: str | None, run_folder: Path, *, url: str | None) -> Found:
    """The checkpoint to resume from, as `files.find`, with a mirror at `url` (None: no mirror).

    "auto" is the checkpoint with the larger step of the run folder and the mirror, the run folder's if they are equal.
    The first process downloads, and the other processes wait for the file.
    Raises CheckpointError, StorageFailed or ConfigError, also if the mirror cannot be read.
    """
    mirrored = None if url is None else _last(url, mirror.KEY)
    if resume_from is not None and is_url(resume_from):
        return _fetch(resume_from, run_folder)
    if url is None or mirrored is None or resume_from != "auto":
        if mirrored is not None and resume_from is None:
            log.warning(f"resume_from=null: this new run replaces the checkpoints in {mirror.KEY}={url}")
        return Found(files.find(resume_from, run_folder))
    try:
        local = files.find("auto", run_folder)
    except CheckpointError as error:
        log.warning(f"{error}; the checkpoint in {mirror.KEY}={url} is used")
        local = None
    if local is not None and files.load(local)["global_step"] >= mirrored.step:
        return Found(local)
    return _restore(url, mirrored, run_folder)


def _last(url: str, key: str) -> Last | None:
    found = call("last", url, key)
    return None if found is None else LAST_FIELDS.validate_python(found)


def _restore(url: str, last: Last, run_folder: Path) -> Found:
    """Make the newest checkpoint of the mirror, its best.ckpt and OTHERS the files of the run folder."""
    path = run_folder / last.name
    if not _is_first():
        _wait_for(path, last.content.size, url)
        return Found(files.find(str(path), run_folder))
    is_new = not files.all_files(run_folder)
    log.info(f"{mirror.KEY}: step {last.step} ({last.content.size / 1e6:.0f} MB) is downloaded from {url}")
    more = (*OTHERS, files.BEST) if last.best is not None else OTHERS
    newest = (last.name, str(path), asdict(last.content))  # comes last, so that an interrupted start repeats all
    call("download", url, files=[*((name, str(run_folder / name), None) for name in more), newest])
    with suppress(FileNotFoundError):
        (run_folder / files.COMPILED_CODE).chmod(0o600)  # whatever the umask; code that others can write is not run
    files.link(path, run_folder / files.LAST)
    downloaded = [run_folder / name for name in (*more, last.name, files.LAST)]
    return Found(files.find(str(path), run_folder), url, downloaded if is_new else [])


def _fetch(url: str, run_folder: Path) -> Found:
    """The checkpoint at `url`, which is a .ckpt object or a mirror, in a file of its own in the run folder.

    The name of the file contains a checksum of the object's tag: the same command finds the file again.
    """
    key = "resume_from"
    folder, name = _locate(url, key)
    about = call("head", folder, key, name=name)
    mark = zlib.crc32(f"{folder}/{name} {about['etag']}".encode())
    path = run_folder / f"resumed_from_{mark:08x}.ckpt"
    if not path.is_file() and _is_first():
        log.info(f"{key}: {about['size'] / 1e6:.0f} MB are downloaded from {folder}/{name}")
        call("download", folder, key, files=[(name, str(path), None)])
    _wait_for(path, about["size"], url)
    return Found(files.find(str(path), run_folder), url, [path])


@contextmanager
def local_checkpoint(ckpt: Path | str, key: str = "ckpt", *, best: bool = False) -> Iterator[tuple[Path, str]]:
    """A checkpoint as a local file, and its path or URL: `ckpt` itself, or a download from a URL, which is a .ckpt
    object or a mirror, into a temporary folder. best: prefer best.ckpt of a mirror to its newest checkpoint.

    Raises CheckpointError, StorageFailed, ConfigError, RunFolderError; a CheckpointError of the block names the URL.
    """
    if isinstance(ckpt, Path):
        yield ckpt, str(ckpt)
        return
    with ExitStack() as stack:
        try:
            folder, name = _locate(ckpt, key, best=best)
            call("head", folder, key, name=name)  # raises CheckpointNotFound
            path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="imagenet_opt_")), Path(name).name)
            call("download", folder, key, files=[(name, str(path), None)], folder_key="TMPDIR")
        except OSError as error:
            raise RunFolderError(
                f"cannot download {ckpt} ({key}) into a temporary folder ({error.strerror}); make room there, or "
                "choose another folder with TMPDIR"
            ) from error
        try:
            files.verify(path, key)
            yield path, f"{folder}/{name}"
        except CheckpointError as error:
            raise type(error)(f"the checkpoint from {folder}/{name}: {error}") from error


def _locate(url: str, key: str, *, best: bool = False) -> tuple[str, str]:
    """Folder and name of a checkpoint: of a mirror its newest, or its best if there is one and `best` prefers it; of
    last.ckpt in a mirror the newest."""
    folder, name = url.rstrip("/"), mirror.LAST
    if url.endswith(".ckpt"):
        folder, _, name = url.rpartition("/")
    if name in (mirror.LAST, files.LAST) and (found := _last(folder, key)) is not None:
        return folder, files.BEST if best and name == mirror.LAST and found.best is not None else found.name
    return folder, name


def _is_first() -> bool:
    """Whether this is the first of all processes of the run."""
    return rank_zero_only.rank == 0 and os.environ.get("NODE_RANK", "0") == "0"  # type: ignore[attr-defined]


def _wait_for(path: Path, size: int, url: str) -> None:
    deadline = time.monotonic() + _WAIT_SECONDS
    while not (path.is_file() and path.stat().st_size == size):
        if time.monotonic() > deadline:
            raise CheckpointNotFound(
                f"the first process did not download {url} to {path} within {_WAIT_SECONDS // 60} minutes; all nodes "
                "need the same run folder: share hydra.run.dir between them"
            )
        time.sleep(_POLL_SECONDS)
