"""The request for a study, and the file that describes the study."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args

from omegaconf import OmegaConf
from pydantic import BaseModel, ConfigDict, ValidationError
from yaml import YAMLError  # type: ignore[import-untyped]

from imagenet_opt.config.overrides import config_folder
from imagenet_opt.errors import ConfigError, did_you_mean

Options = TypeVar("Options", bound=BaseModel)


DEFAULT_ROUNDS, MOST_ROUNDS = 5, 1000
FLAGS = ("repeats", "budget", "seconds", "parity", "apply")
"""Options of the command line that only some kinds of study accept."""
KINDS = {
    "steps": FLAGS,
    "scaling": ("repeats", "seconds"),
    "queue": ("repeats",),
    "read": ("repeats", "seconds"),
    "anatomy": ("seconds",),
    "shapes": ("repeats", "seconds"),
    "streams": ("repeats", "seconds"),
    "torchscript": ("repeats", "seconds"),
}
"""By kind of study, the FLAGS that it accepts."""


class StudyFile(BaseModel):
    """Keys that every file in conf/study has; each kind adds its own."""

    model_config = ConfigDict(extra="allow")
    title: str
    kind: str


@dataclass(frozen=True)
class Request:
    """The command line of a study.

    name: of the study, or its file, as typed. options: keys of the file, without title and kind. overrides: of
    train.py, for all rows. repeats: number of rounds; None to measure as many as fit into budget_seconds. seconds: of
    each timed stretch. parity_steps: training steps for comparing losses; 0 to skip the comparison. apply: whether to
    write the useful steps as an experiment. folder: keeps the results, so that a stopped study resumes. command: the
    complete command line.
    """

    name: str
    title: str
    kind: str
    options: dict[str, Any]
    overrides: tuple[str, ...]
    repeats: int | None
    seconds: float
    parity_steps: int
    folder: Path
    apply: bool = False
    command: str = ""
    budget_seconds: float = 0.0

    @property
    def num_rounds(self) -> int:
        """Number of rounds for measurements that are not limited by the budget."""
        return self.repeats or DEFAULT_ROUNDS


def read_study(name: str, changes: Sequence[str] = ()) -> StudyFile:
    """Read a study by the name of a shipped study or by its path.

    changes: new values of keys, such as "num_workers=[4,8]". Raises ConfigError for unknown names, with similar names,
    and for invalid files.
    """
    file = _file_of(name)
    try:
        written: Any = OmegaConf.to_container(OmegaConf.load(file))
        changed: Any = OmegaConf.to_container(OmegaConf.from_dotlist(list(changes)))
        study = StudyFile.model_validate(written | changed if isinstance(written, dict) else written)
    except (YAMLError, UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"study={name}: {file} or study.KEY=VALUE: {' '.join(str(error).split())}") from error
    except ValidationError as error:
        raise ConfigError(f"study={name}: {_first_mistake(error, StudyFile)}") from error
    if study.kind not in KINDS:
        raise ConfigError(f"study={name}: kind={study.kind} must be one of {', '.join(KINDS)}")
    return study


def _file_of(name: str) -> Path:
    if name.endswith((".yaml", ".yml")):
        if not (file := Path(name)).is_file():
            raise ConfigError(f"study={name}: no such file ({file.absolute()})")
        return file
    if name not in (shipped := shipped_names()):
        hint = did_you_mean(name, shipped, f"expected {', '.join(shipped)}, or a YAML file")
        raise ConfigError(f"study={name}: there is no such study; {hint}")
    return config_folder() / "study" / f"{name}.yaml"


def shipped_names() -> list[str]:
    return sorted(file.stem for file in (config_folder() / "study").glob("*.yaml"))


def checked_options(model: type[Options], request: Request) -> Options:
    """Validate the options of a study's file with the model of its kind. Raises ConfigError that names the key."""
    try:
        return model.model_validate(request.options)
    except ValidationError as error:
        raise ConfigError(f"study={request.name}: {_first_mistake(error, model)}") from error


def _first_mistake(error: ValidationError, model: type[BaseModel]) -> str:
    """Describe the first mistake of a study's file. Unknown keys come first, as a missing key is often misspelt."""
    detail = min(error.errors(), key=lambda detail: detail["type"] != "extra_forbidden")
    *place, key = map(str, detail["loc"] or ("the file",))
    where = ".".join((*place, key))
    if detail["type"] == "extra_forbidden":
        known = get_args(model.model_fields[place[0]].annotation)[0].model_fields if place else model.model_fields
        expected = f"expected {', '.join(known)}"
        return f"there is no key {where}; {did_you_mean(key, known, expected)}"
    value = "" if detail["type"] == "missing" else f"={detail['input']}"
    return f"{where}{value}: {detail['msg']}"


@contextmanager
def mistakes_in_file(request: Request) -> Iterator[None]:
    """Name the study's file in ConfigErrors about its content."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"study={request.name}: {error}") from error
