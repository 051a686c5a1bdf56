"""Checkpoint files: names and links, verification, safe loading, and comparison with a network."""

import logging
import os
import re
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Annotated, Any

import torch
from pydantic import AliasPath, BaseModel, ConfigDict, Field, JsonValue, ValidationError
from pydantic.types import StrictBool, StrictFloat, StrictInt, StrictStr
from torch import Tensor, nn

from imagenet_opt.atomic_file import replacing
from imagenet_opt.errors import CheckpointError, CheckpointMismatch, CheckpointNotFound
from imagenet_opt.run.checkpoint.names import BEST, LAST, step_files

log = logging.getLogger(__name__)

_OLD_FORMAT = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""The first bytes of a file of torch.save before torch 1.6, a pickled number."""
_TRAINED_WITH = ("data.mean", "data.std", "model.blurpool", "model.small_stem")
_Setting = StrictBool | StrictInt | StrictFloat | StrictStr | None


class _Settings(BaseModel):
    """A network_config."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, _Setting | Sequence[_Setting] | Mapping[str, _Setting]]
    classes: Sequence[StrictStr] = ()


class _OptimizerState(BaseModel):
    state: dict[Any, Any]
    param_groups: list[dict[str, Any]] = Field(min_length=1)


class _DataState(BaseModel):
    """What `data.datamodule` saves; the other keys are facts of the order."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, StrictInt]
    epoch: StrictInt
    step: StrictInt
    images: dict[str, str] = {}  # of earlier versions, as the next
    skipped: dict[str, dict[int, str]] = {}


class _Resumable(BaseModel):
    """The forms of all that a resume reads before Lightning compares it with the run."""

    model_config = ConfigDict(strict=True, arbitrary_types_allowed=True)
    network: dict[str, Tensor]
    network_config: _Settings | None = None
    state_dict: dict[str, Any]
    optimizer_states: list[_OptimizerState] = Field(min_length=1)
    lr_schedulers: list[dict[str, Any]]
    done_epochs: int = Field(validation_alias=AliasPath("loops", "fit_loop", "epoch_progress", "current", "processed"))
    callbacks: dict[str, dict[str, Any]]
    global_step: int = Field(ge=0)
    data: _DataState | None = Field(None, alias="ImageData")
    train_sums: Tensor | None = None
    recipes: dict[StrictInt, dict[str, JsonValue]] = {}
    begun: dict[str, JsonValue] = {}
    starts: list[Annotated[list[float], Field(min_length=2, max_length=2)]] = []


def all_files(run_folder: Path) -> list[Path]:
    """Every checkpoint of a run, each under one name, the latest step first.

    File names give the order, since a copied folder has other modification times.
    """
    files: dict[tuple[int, int], Path] = {}
    for file in (*reversed(step_files(run_folder)), run_folder / LAST, run_folder / BEST):
        if file.exists():
            status = file.stat()
            files.setdefault((status.st_dev, status.st_ino), file)
    return list(files.values())


def link(source: Path, name: Path) -> None:
    """Atomically make `name` a hard link to `source`, or a copy where the file system has no hard links."""
    with replacing(name) as fresh:
        try:
            os.link(source, fresh)
        except OSError:
            shutil.copyfile(source, fresh)
            with fresh.open("rb") as file:
                os.fsync(file.fileno())


def verify(path: Path, key: str = "resume_from") -> None:
    """Read the whole file and compare each record with its checksum: 0.3 s for 200 MB in the page cache.

    Raises CheckpointError for a truncated or corrupt file.
    """
    try:
        with _archive(path) as archive:
            damaged = archive.testzip()
    except Exception as error:
        raise _cannot_open(path, key, str(error) or type(error).__name__) from error
    if damaged is not None:
        raise CheckpointError(
            f"{path} is damaged: {damaged} does not match its checksum; choose an earlier checkpoint with {key}=PATH"
        )


def read(path: Path, key: str = "resume_from") -> dict[str, Any]:
    """Open a checkpoint of this project, as `load` does. key: the option that named the file, for error messages.

    Raises CheckpointNotFound; CheckpointError for a file that is damaged or not a checkpoint of this project.
    """
    return checked(load(path, key), path, key)


def checked(checkpoint: dict[str, Any], path: Path, key: str) -> dict[str, Any]:
    """The checkpoint, if its network has the form of this project. Raises CheckpointError."""
    if "network" not in checkpoint:
        raise CheckpointError(f"{path} holds no `network`; expected a checkpoint that train.py wrote ({key})")
    parts = checkpoint["network"], checkpoint.get("network_config", {})
    if not all(isinstance(part, dict) for part in parts) or not all(is_weight(*item) for item in parts[0].items()):
        raise CheckpointError(
            f"{path} holds a `network` or `network_config` of another form; expected a checkpoint that train.py wrote "
            f"({key})"
        )
    return checkpoint


def is_weight(name: object, tensor: object) -> bool:
    """Whether `tensor` is dense and has its own bytes, as an expanded or meta tensor has not."""
    if not isinstance(name, str) or not isinstance(tensor, Tensor):
        return False
    is_dense = tensor.layout is torch.strided and tensor.device.type == "cpu"
    return is_dense and tensor.nbytes <= tensor.untyped_storage().nbytes()


def load(
    path: Path,
    key: str = "resume_from",
    *,
    expected: str = "a run folder or a .ckpt file",
    allowed: Sequence[type] = (),
) -> dict[str, Any]:
    """Open any checkpoint on the CPU without running code from the file; tensors are read when they are used.

    expected: what the option `key` takes, for the message about an absent file. allowed: classes whose objects the file
    may hold; they only carry values.
    Raises CheckpointNotFound, CheckpointError.
    """
    if not path.is_file():
        raise CheckpointNotFound(f"no checkpoint at {path} ({key}); expected {expected}")
    try:
        _archive(path).close()
        with torch.serialization.safe_globals(list(allowed)):
            checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        remedy = "" if key == "resume_from" else _rewritten(path, error)
        raise _cannot_open(path, key, type(error).__name__, remedy) from error
    if not isinstance(checkpoint, dict):
        raise CheckpointError(f"{path} holds a {type(checkpoint).__name__}; expected a checkpoint ({key})")
    return checkpoint


def _archive(path: Path) -> zipfile.ZipFile:
    """The file as an archive. Raises BadZipFile if its records hold more bytes than the file, as a zip bomb does; torch
    compresses no record."""
    archive = zipfile.ZipFile(path)
    records = archive.infolist()
    is_stored = all(record.compress_type == zipfile.ZIP_STORED for record in records)
    if not is_stored or sum(record.file_size for record in records) > path.stat().st_size:
        archive.close()
        raise zipfile.BadZipFile("its records are compressed or overlap")
    return archive


def _cannot_open(path: Path, key: str, reason: str, remedy: str = "") -> CheckpointError:
    another = "an earlier checkpoint" if key == "resume_from" else "another file"
    remedy = remedy or f"the file is damaged, or another program wrote it: choose {another} with {key}=PATH"
    return CheckpointError(f"{path} cannot be opened as a checkpoint ({reason}); {remedy}")


def _rewritten(path: Path, error: Exception) -> str:
    """How the user makes a usable file of a format that is not read here; empty for a damaged file."""
    with path.open("rb") as file:
        if file.read(len(_OLD_FORMAT)) == _OLD_FORMAT:
            return "torch wrote it in its format before 1.6: torch.save(torch.load(FILE, weights_only=True), NEW_FILE)"
    if "TorchScript" in str(error):
        return "it holds a TorchScript program: torch.save(torch.jit.load(FILE).state_dict(), NEW_FILE)"
    if foreign := re.search(r"GLOBAL ([\w.]+)", str(error)):
        return (
            f"it holds Python objects ({foreign[1]}), which may run code: write the weights alone, in the program that "
            "made the file: torch.save(network.state_dict(), NEW_FILE)"
        )
    return ""


def find(resume_from: str | None, run_folder: Path) -> Path | None:
    """The checkpoint to resume from: "auto" is the newest intact checkpoint of the run folder, None a new run.

    Raises CheckpointNotFound or CheckpointError when the path, or every checkpoint of the run folder, is unusable.
    """
    if resume_from is None:
        return None
    if resume_from != "auto":
        path = Path(resume_from).expanduser().resolve()
        path = path / LAST if path.is_dir() else path
        _check(path)
        return path
    checkpoints = all_files(run_folder)
    for path in checkpoints:
        try:
            _check(path)
            return path
        except CheckpointError as error:
            log.warning(f"checkpoint skipped: {error}")
    if checkpoints:
        raise CheckpointError(
            f"none of the {len(checkpoints)} checkpoints in {run_folder} can be used: restore a checkpoint, or start a "
            "new run with another hydra.run.dir, or in this folder with resume_from=null"
        )
    return None


def _check(path: Path) -> None:
    """Raises CheckpointNotFound or CheckpointError unless a run can resume from `path`."""
    if path.is_file():
        verify(path)
    try:
        _Resumable.model_validate(read(path))
    except ValidationError as error:
        parts = ", ".join(dict.fromkeys(".".join(map(str, each["loc"][:2])) for each in error.errors()))
        raise CheckpointError(
            f"{path} holds no usable {parts}; expected a checkpoint that train.py wrote (resume_from)"
        ) from error


def check_settings(checkpoint: dict[str, Any], expected: Mapping[str, Any], source: str, *more: str) -> None:
    """Compare settings that the weights depend on; most of them change neither names nor shapes of the weights.

    expected: the network_config of the run, by the names of the keys without their group. source: for the message.
    more: keys beside those of `_TRAINED_WITH`.
    Raises CheckpointMismatch.
    """
    saved = checkpoint.get("network_config")
    if not isinstance(saved, Mapping):
        return
    keys = (*more, *_TRAINED_WITH)
    settings = {key: [values.get(key.partition(".")[2]) for values in (saved, expected)] for key in keys}
    settings = {key: pair for key, pair in settings.items() if None not in pair}
    options = [values.get("options") or {} for values in (saved, expected)]
    for name in {name for each in options for name in each if not str(name).endswith("drop_rate")}:
        settings[f"model.options.{name}"] = [each.get(name) for each in options]
    for key, pair in settings.items():
        before, now = (list(v) if isinstance(v, tuple) else v for v in pair)
        if before != now:
            raise CheckpointMismatch(
                f"{source} were trained with {key}={word(before)}, and this run has {key}={word(now)}; "
                f"set {key}={word(before)}"
            )


def word(value: Any) -> str:
    """As on the command line; of a group its keys and values, or its class. At most a line."""
    if isinstance(value, Mapping):
        parts = [f"{key}={word(part)}" for key, part in value.items() if not str(key).startswith("_")]
        text = ", ".join(parts) or str(value.get("_target_", "{}"))
    else:
        text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return shorten(text, 100)


def check_network(checkpoint: dict[str, Any], net: nn.Module, path: Path) -> None:
    """Raises CheckpointMismatch, which lists the differing tensors, unless the checkpoint's network matches `net`."""
    saved = {name: tuple(tensor.shape) for name, tensor in checkpoint["network"].items()}
    expected = {name: tuple(tensor.shape) for name, tensor in net.state_dict().items()}
    if saved == expected:
        return
    resized = [f"{n} {saved[n]} here {expected[n]}" for n in saved if n in expected and saved[n] != expected[n]]
    absent, extra = sorted(expected.keys() - saved.keys()), sorted(saved.keys() - expected.keys())
    parts = [("other shape", resized), ("not in the file", absent), ("only in the file", extra)]
    differences = "; ".join(f"{kind}: {', '.join(names[:3])} ({len(names)} in all)" for kind, names in parts if names)
    network = checkpoint.get("network_config", {})
    raise CheckpointMismatch(
        f"{path} holds another network ({network.get('name')}, {network.get('num_classes')} classes): {differences}. "
        "Use the model.* keys and the data of that checkpoint, or start a new run with resume_from=null and another "
        "run folder"
    )
