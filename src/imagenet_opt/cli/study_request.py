"""What a study is asked for, and the file that describes it."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from omegaconf import OmegaConf
from pydantic import BaseModel, ConfigDict, ValidationError
from yaml import YAMLError  # type: ignore[import-untyped]

from imagenet_opt.errors import ConfigError

Options = TypeVar("Options", bound=BaseModel)


class Kind(NamedTuple):
    """run: a function (Request) -> list of Sheets, which says what the study's file may hold. flags: of those of FLAGS
    that it takes."""

    run: str
    flags: tuple[str, ...] = ("repeats", "seconds")


FLAGS = ("repeats", "seconds", "parity", "price_per_hour", "apply")
"""Of the command line, which not every kind takes."""
KINDS = {
    "steps": Kind("imagenet_opt.cli.study_steps.run", FLAGS),
    "scaling": Kind("imagenet_opt.cli.study_scaling.run"),
    "queue": Kind("imagenet_opt.cli.study_queue.run", ("repeats",)),
    "read": Kind("imagenet_opt.cli.study_read.run"),
    "anatomy": Kind("imagenet_opt.cli.study_anatomy.run", ("seconds",)),
    "shapes": Kind("imagenet_opt.cli.study_shapes.run"),
    "streams": Kind("imagenet_opt.cli.study_streams.run"),
    "torchscript": Kind("imagenet_opt.cli.study_torchscript.run"),
}


class StudyFile(BaseModel):
    """What every file in conf/study holds; the other keys are its kind's."""

    model_config = ConfigDict(extra="allow")
    title: str
    kind: str


@dataclass(frozen=True)
class Request:
    """name: the file's stem. options: what the file says beside title and kind. overrides: of train.py, for everything.

    repeats: rounds. seconds: of each timed stretch. parity_steps: steps that the parity check trains, 0 for no check.
    price_per_hour: of the machine, None where unknown. apply: write what was worth it as an experiment.
    folder: keeps what was measured, so that the study goes on. command: as it was typed.
    """

    name: str
    title: str
    kind: str
    options: dict[str, Any]
    overrides: tuple[str, ...]
    repeats: int
    seconds: float
    parity_steps: int
    price_per_hour: float | None
    folder: Path
    apply: bool = False
    command: str = ""


def read_study(name: str, shipped: Path, changes: Sequence[str] = ()) -> tuple[str, StudyFile]:
    """The study of that name among the `shipped`, or the file at that path; with its stem.

    changes: of its keys, as "num_workers=[4,8]", each as a whole. Raises ConfigError, with near names, and for a file
    that is no study.
    """
    file = Path(name) if name.endswith((".yaml", ".yml")) else shipped / f"{name}.yaml"
    if not file.is_file():
        known = sorted(found.stem for found in shipped.glob("*.yaml"))
        near = difflib.get_close_matches(name, known, n=2, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"expected {', '.join(known)}, or a YAML file"
        raise ConfigError(f"study={name}: there is no such study; {hint}")
    changed = _values(changes)
    try:
        written: Any = OmegaConf.to_container(OmegaConf.load(file))
        study = StudyFile.model_validate(written | changed if isinstance(written, dict) else written)
    except (YAMLError, UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"study={name}: {file} cannot be read: {' '.join(str(error).split())}") from error
    except ValidationError as error:
        detail = error.errors()[0]
        raise ConfigError(f"study={name}: {'.'.join(map(str, detail['loc']))}: {detail['msg']} (in {file})") from error
    if study.kind not in KINDS:
        raise ConfigError(f"study={name}: kind: {study.kind} must be one of {', '.join(KINDS)} (in {file})")
    return file.stem, study


def _values(changes: Sequence[str]) -> dict[str, Any]:
    """By key. Raises ConfigError."""
    try:
        found: Any = OmegaConf.to_container(OmegaConf.from_dotlist(list(changes)))
    except YAMLError as error:
        words = " ".join(f"study.{change}" for change in changes)
        raise ConfigError(f"{words}: no value that YAML knows, such as study.num_workers=[4,8]") from error
    return dict(found)


def checked_options(model: type[Options], request: Request) -> Options:
    """The options of the study's file as its kind's model has them. Raises ConfigError that names the key."""
    try:
        return model.model_validate(request.options)
    except ValidationError as error:
        detail = error.errors()[0]
        raise ConfigError(f"study={request.name}: {'.'.join(map(str, detail['loc']))}: {detail['msg']}") from error
