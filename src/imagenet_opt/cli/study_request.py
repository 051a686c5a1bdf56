"""What a study is asked for, and the file that describes it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from omegaconf import OmegaConf
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from yaml import YAMLError  # type: ignore[import-untyped]

from imagenet_opt.cli.study_mistakes import near_or, told
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
    kind: str = Field(description=", ".join(KINDS))


@dataclass(frozen=True)
class Request:
    """name: the file's stem. typed: that or the file, as the command line has it. options: what the file says beside
    title and kind. overrides: of train.py, for everything.

    repeats: rounds. seconds: of each timed stretch. parity_steps: steps that the parity check trains, 0 for no check.
    price_per_hour: of the machine, None where unknown. apply: write what was worth it as an experiment.
    folder: keeps what was measured, so that the study goes on. command: the whole of it, as it was typed.
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
    typed: str = ""


def read_study(name: str, shipped: Path, changes: Sequence[str] = ()) -> tuple[str, StudyFile]:
    """The study of that name among the `shipped`, or the file at that path; with its stem.

    changes: of its keys, as "num_workers=[4,8]", each as a whole. Raises ConfigError, with near names, and for a file
    that is no study.
    """
    file = _found(name, shipped)
    changed = _values(changes)
    try:
        written: Any = OmegaConf.to_container(OmegaConf.load(file))
        written = written | changed if isinstance(written, dict) else written
        study = StudyFile.model_validate(written)
    except (YAMLError, UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"study={name}: {file} cannot be read: {' '.join(str(error).split())}") from error
    except ValidationError as error:
        raise ConfigError(f"study={name}: {told(error, StudyFile, written)} (in {file})") from error
    if study.kind not in KINDS:
        raise ConfigError(f"study={name}: kind={study.kind} must be one of {', '.join(KINDS)} (in {file})")
    return file.stem, study


def _found(name: str, shipped: Path) -> Path:
    """Raises ConfigError."""
    if name.endswith((".yaml", ".yml")):
        if not (file := Path(name)).is_file():
            raise ConfigError(f"study={name}: no such file ({file.absolute()})")
        return file
    if not (file := shipped / f"{name}.yaml").is_file():
        known = shipped_names(shipped)
        hint = near_or(name, known, f"expected {', '.join(known)}, or a YAML file")
        raise ConfigError(f"study={name}: there is no such study; {hint}")
    return file


def shipped_names(shipped: Path) -> list[str]:
    return sorted(found.stem for found in shipped.glob("*.yaml"))


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
        said = told(error, model, request.options)
        raise ConfigError(f"study={request.typed or request.name}: {said}") from error
