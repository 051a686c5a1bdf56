"""record.json: what a run was and what it reached, for tables, comparisons, and others who check a published row."""

import errno
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from imagenet_opt.atomic_file import write_atomically
from imagenet_opt.errors import ConfigError
from imagenet_opt.regular_file import read_file

RECORD, SUMMARY = "record.json", "summary.json"
"""A run before version 0.3 left the numbers alone, in SUMMARY."""
_MOST_BYTES = 2**22
_Count = Annotated[int, Field(ge=0, le=2**53)]
_Amount = Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False)]
_Share = Annotated[float, Field(ge=0, le=1)]
_Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_Numbers = dict[str, Annotated[int, Field(ge=-(2**63), lt=2**63)] | float]
_NUMBERS = TypeAdapter(_Numbers)


class Evaluation(BaseModel):
    """What `imagenet-opt evaluate` found. checkpoint: name in the run folder. sha256: of this file. eval: as typed.
    correct, images: numbers for each class."""

    checkpoint: str
    sha256: _Hash
    eval: str | None
    image_size: _Count
    crop_ratio: _Share
    interpolation: str
    tta: bool
    top1: _Share
    top5: _Share | None
    correct: list[_Count] = Field(max_length=2**16)
    images: list[_Count] = Field(max_length=2**16)


class RunRecord(BaseModel):
    """recipe_sha256: of everything that changes what is learned, as checkpoints hold it. config_sha256: of
    .hydra/config.yaml. device: name of the GPU, or of the CPU. train_images, val_images: of the data set. samples:
    trained images, `epochs` passes over the data set. starts: first step of each start of the run, and its seconds
    until the checkpoint from which the next one resumed. price_per_hour, dollars: None if unknown. numbers: the last
    validation, rates, waits, memory; those of the last start, as docs/dashboards.md says."""

    model_config = ConfigDict(extra="forbid")
    format: Literal[1]
    experiment: str | None
    recipe_sha256: _Hash
    config_sha256: _Hash
    versions: dict[str, str]
    device: str
    num_gpus: Annotated[int, Field(ge=1, le=2**20)]
    num_machines: Annotated[int, Field(ge=1, le=2**20)]
    train_images: Annotated[int, Field(ge=1, le=2**53)]
    val_images: _Count
    epochs: _Amount
    steps: _Count
    global_batch: Annotated[int, Field(ge=1, le=2**31)]
    samples: _Count
    starts: list[tuple[_Count, _Amount]]
    hours: _Amount
    price_per_hour: _Amount | None
    dollars: _Amount | None
    numbers: _Numbers
    evaluation: Evaluation | None = None


def write_record(facts: Mapping[str, Any], file: Path) -> None:
    """Write a record with a line for each value, lists in one line. Raises OSError."""
    write_atomically(file, _text(facts) + "\n")


def _text(value: Any, indent: str = "\n") -> str:
    if not isinstance(value, Mapping) or not value:
        return json.dumps(value)
    inner = indent + " "
    parts = (f"{json.dumps(key)}: {_text(part, inner)}" for key, part in value.items())
    return f"{{{inner}{f',{inner}'.join(parts)}{indent}}}"


def read_record(file: Path) -> RunRecord:
    """Raises ConfigError, which names the first wrong field."""
    try:
        return RunRecord.model_validate_json(_content(file))
    except OSError as error:
        raise ConfigError(f"cannot read {file} ({error.strerror}); train.py writes it when a run ends") from error
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "the file"
        raise ConfigError(
            f"{file}: {field} is wrong ({first['msg']}); expected a record that train.py wrote"
        ) from error


def read_summary(folder: Path) -> dict[str, float]:
    """The numbers of a run; empty if the run wrote no whole record."""
    is_old = not (folder / RECORD).exists()
    try:
        content = json.loads(_content(folder / (SUMMARY if is_old else RECORD)))
        return _NUMBERS.validate_python(content if is_old else content["numbers"])
    except (FileNotFoundError, ValueError, KeyError, TypeError, RecursionError):
        return {}


def _content(file: Path) -> bytes:
    """Raises OSError, for more bytes than a record has too."""
    if file.stat().st_size > _MOST_BYTES:
        raise OSError(errno.EFBIG, f"more than {_MOST_BYTES} bytes")
    return read_file(file)


def add_evaluation(ckpt: Path, facts: Mapping[str, Any], num_images: int) -> str | None:
    """Put the result of an evaluation into the record beside the checkpoint, if all validation images of the run were
    evaluated. facts: the fields of Evaluation, and others. Returns a sentence about it; None without a record."""
    file = ckpt.parent / RECORD
    try:
        record = read_record(file)
        if num_images != record.val_images:
            return f"The accuracy is not in {file}, whose run had {record.val_images} validation images."
        found = {"checkpoint": ckpt.name, "sha256": hash_of(ckpt), **facts}
        record.evaluation = Evaluation.model_validate(found)
        write_record(record.model_dump(), file)
    except (ConfigError, OSError) as error:
        return f"The accuracy is not in a record: {error}." if file.exists() else None
    return f"The accuracy is in {file}; imagenet-opt report --verify {ckpt.parent} checks this record."


def hash_of(file: Path) -> str:
    """SHA-256 of a file. Raises OSError."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def hash_of_recipes(recipes: Mapping[int, Any]) -> str:
    """SHA-256 of the recipes of a run by their first step."""
    return hashlib.sha256(json.dumps(recipes, sort_keys=True, default=str).encode()).hexdigest()
