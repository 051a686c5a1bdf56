"""Finds the checkpoint to resume from in the run folder and in its mirror, and downloads it."""

import logging
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lightning.fabric.utilities.rank_zero import rank_zero_only

from imagenet_opt.errors import CheckpointError, CheckpointNotFound, ConfigError, ImagenetOptError, RunFolderError
from imagenet_opt.object_storage import FoundObject, is_url
from imagenet_opt.run.checkpoint import files, mirror, names
from imagenet_opt.run.checkpoint.mirror import call
from imagenet_opt.run.checkpoint.uploads import OTHERS

log = logging.getLogger(__name__)

_WAIT_SECONDS = 600
_POLL_SECONDS = 0.5
_RESTARTS = ("SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT")


@dataclass(frozen=True)
class FoundCheckpoint:
    """The checkpoint to resume from; None for a new run. source: the URL from which it was downloaded now.
    downloaded: the files that are new in the run folder. replaced: later checkpoints of the mirror, which the run
    replaces at its first save."""

    path: Path | None
    source: str | None = None
    downloaded: list[Path] = field(default_factory=list)
    replaced: list[FoundObject] = field(default_factory=list)

    @contextmanager
    def without_downloads_if_refused(self) -> Iterator[None]:
        """Remove the downloaded files after an ImagenetOptError; a CheckpointError then names the URL too."""
        try:
            yield
        except ImagenetOptError as error:
            for file in self.downloaded:
                file.unlink(missing_ok=True)
                if file.parent.name == names.FOLDER:
                    with suppress(OSError):  # not empty
                        file.parent.rmdir()
            if self.source is None or not isinstance(error, CheckpointError):
                raise
            raise type(error)(f"the checkpoint from {self.source}: {error}") from error


def find(resume_from: str | None, run_folder: Path, *, url: str | None) -> FoundCheckpoint:
    """The checkpoint to resume from, as `files.find`, with a mirror at `url` (None: no mirror).

    "auto" is the intact checkpoint with the largest step of the run folder and the mirror, the run folder's if they are
    equal.
    The first process downloads, and the other processes wait for the file.
    Raises CheckpointError, StorageFailed or ConfigError, also if the mirror cannot be read.
    """
    if is_url(resume_from):
        raise ConfigError(
            f"resume_from={resume_from} is no local path; download the checkpoint, or name its bucket with "
            f"{mirror.KEY} and leave out resume_from"
        )
    mirrored = [] if url is None else [FoundObject(*each) for each in call("steps", url)]  # the latest step first
    if url is None or not mirrored or resume_from != "auto":
        found = FoundCheckpoint(files.find(resume_from, run_folder))
    else:
        found = _newest(url, mirrored, run_folder)
    step = _step(found.path)
    replaced = [each for each in mirrored if names.step_of(each.path) > step]
    if replaced and resume_from != "auto":
        log.warning(
            f"resume_from={resume_from or 'null'}: this run replaces the later checkpoints in {mirror.KEY}={url}"
        )
    return replace(found, replaced=replaced)


def has_begun(begun: Mapping[str, Any], run_folder: Path, *, url: str | None) -> bool:
    """Whether the newest checkpoint of the run folder, or of the mirror if the folder has none, is of a run that the
    same command began.

    begun: its `resume_from` and `overrides`, as checkpoints hold them. The job of a scheduler that starts again may
    have other overrides.
    """
    try:
        if (newest := files.find("auto", run_folder)) is not None:
            return _is_begin(begun, newest)
        if url is not None and (mirrored := call("steps", url)):
            with local_checkpoint(f"{url}/{FoundObject(*mirrored[0]).path}", mirror.KEY) as (path, _):
                return _is_begin(begun, path)
    except CheckpointError:  # no usable checkpoint
        pass
    return False


def _is_begin(begun: Mapping[str, Any], path: Path) -> bool:
    keys = ["resume_from"] if any(os.environ.get(name, "0") != "0" for name in _RESTARTS) else list(begun)
    saved = files.load(path).get("begun") or {"resume_from": "auto"}  # checkpoints of earlier versions do not say
    return all(saved.get(key) == begun[key] for key in keys)


def _step(path: Path | None) -> int:
    return -1 if path is None else int(files.load(path)["global_step"])


def _newest(url: str, mirrored: list[FoundObject], run_folder: Path) -> FoundCheckpoint:
    """Download the checkpoints of the mirror that are later than those of the run folder, until one is intact; with the
    first come best.ckpt and OTHERS."""
    is_new, local = not files.all_files(run_folder), None
    try:
        local = files.find("auto", run_folder)
    except CheckpointError as error:
        log.warning(f"{error}; the checkpoint in {mirror.KEY}={url} is used")
    step = _step(local)
    others = [*OTHERS, names.BEST]
    downloaded = [run_folder / name for name in (*others, names.LAST)]
    for i, each in enumerate(mirrored):
        if names.step_of(each.path) <= step:
            break
        downloaded.append(path := run_folder / each.path)
        _download(url, each, path, () if i else others)
        try:
            files.find(str(path), run_folder)
        except CheckpointError as error:
            log.warning(f"checkpoint skipped: {url}/{each.path}: {error}")
            continue
        if is_first():
            files.link(path, run_folder / names.LAST)
        return FoundCheckpoint(path, url, downloaded if is_new else [])
    if local is not None:
        return FoundCheckpoint(local)
    found = FoundCheckpoint(None, url, downloaded if is_new else [])
    with found.without_downloads_if_refused():
        return replace(found, path=files.find("auto", run_folder))  # best.ckpt, if it is intact


def _download(url: str, checkpoint: FoundObject, path: Path, others: Sequence[str]) -> None:
    """Download the files of the names `others`, and then a checkpoint, so that an interrupted start repeats all."""
    if not is_first():
        _wait_for(path, checkpoint.size, url)
        return
    run_folder, step = path.parent.parent, names.step_of(checkpoint.path)
    log.info(f"{mirror.KEY}: step {step} ({checkpoint.size / 1e6:.0f} MB) is downloaded from {url}")
    more = [(name, str(run_folder / name)) for name in others]
    call("download", url, name=checkpoint.path, target=str(path), others=more)
    if names.COMPILED_CODE in others:
        with suppress(FileNotFoundError):
            (run_folder / names.COMPILED_CODE).chmod(0o600)  # whatever the umask; code that others can write is not run
    best = run_folder / names.BEST
    try:
        if names.BEST in others and best.exists():
            files.verify(best)
    except CheckpointError as error:
        log.warning(f"{names.BEST} is not restored: {error}")
        best.unlink()


@contextmanager
def local_checkpoint(ckpt: Path | str, key: str = "ckpt") -> Iterator[tuple[Path, str]]:
    """A checkpoint as a local file, and its path or URL: `ckpt` itself, or a download of the .ckpt object of a URL into
    a temporary folder.

    Raises CheckpointError, StorageFailed, ConfigError, RunFolderError; a CheckpointError of the block names the URL.
    """
    if isinstance(ckpt, Path):
        yield ckpt, str(ckpt)
        return
    folder, _, name = ckpt.rpartition("/")
    if not name.endswith(".ckpt"):
        raise ConfigError(f"{key}={ckpt} is no checkpoint; expected an object such as {ckpt.rstrip('/')}/{names.BEST}")
    with ExitStack() as stack:
        try:
            path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="imagenet_opt_")), name)
            call("download", folder, key, name=name, target=str(path), folder_key="TMPDIR")
        except OSError as error:
            raise RunFolderError(
                f"cannot download {ckpt} ({key}) into a temporary folder ({error.strerror}); make room there, or "
                "choose another folder with TMPDIR"
            ) from error
        try:
            files.verify(path, key)
            yield path, ckpt
        except CheckpointError as error:
            raise type(error)(f"the checkpoint from {ckpt}: {error}") from error


def is_first() -> bool:
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
