"""The request for a study, and the file that describes the study."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

from omegaconf import OmegaConf
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from yaml import YAMLError  # type: ignore[import-untyped]

from imagenet_opt.config.overrides import config_folder
from imagenet_opt.errors import ConfigError, did_you_mean

_EXPECTED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "string_type": "a text",
    "list_type": "a list",
    "tuple_type": "a list",
    "model_type": "keys with their values",
    "too_short": "a list of {min_length} or more",
}
"""The expected value, by pydantic's name for an error. For other errors pydantic's own words are used."""


def _first_mistake(error: ValidationError, model: type[BaseModel], written: Any) -> str:
    """Describe the first mistake of a study's file. Unknown keys come before missing keys, as a missing key is often
    misspelt.

    written: the content that was validated as `model`.
    """
    details = sorted(error.errors(), key=lambda detail: detail["type"] != "extra_forbidden")
    place, detail = _place(details[0]["loc"]), details[0]
    name, common = "", tuple(StudyFile.model_fields)
    if place:
        (key, number), common = place, ()
        model, written = get_args(model.model_fields[key].annotation)[0], written[key][number]
        name = f"{key.removesuffix('s')} {repr(written['name']) if 'name' in written else number + 1}: "
    if detail["type"] == "extra_forbidden":
        return name + _unknown(str(detail["loc"][-1]), (*common, *model.model_fields))
    if detail["type"] == "missing":
        alike = [other for other in details if other["type"] == "missing" and _place(other["loc"]) == place]
        return name + _missing([str(other["loc"][-1]) for other in alike], model.model_fields, written)
    return name + _unfit(detail, [other for other in details if other["loc"][:1] == detail["loc"][:1]], len(place))


def _place(loc: tuple[str | int, ...]) -> tuple[str, int] | tuple[()]:
    """Key and number of the list item that contains the key at `loc`, such as ("steps", 0); () for a top-level key."""
    return (str(loc[0]), loc[1]) if len(loc) > 2 and isinstance(loc[1], int) else ()


def _unknown(key: str, known: Sequence[str]) -> str:
    expected = f"expected {', '.join(known)}"
    return f"there is no key {key}; {did_you_mean(key, known, expected)}"


def _missing(keys: list[str], fields: Mapping[str, FieldInfo], written: Mapping[str, Any]) -> str:
    others = [key for key in map(str, written) if key not in fields]
    for key in keys:
        if near := difflib.get_close_matches(key, others, n=1):
            return f"there is no key {near[0]}; did you mean {key}?"
    field = fields[keys[-1]]
    known = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    values = field.description or ", ".join(map(str, known))
    return f"{' and '.join(keys)} must be given{f' ({keys[-1]}: one of {values})' if values else ''}"


def _unfit(detail: ErrorDetails, same_key: list[ErrorDetails], depth: int) -> str:
    """Describe a wrong value. same_key: all errors of this key; a value that may have several types has one for
    each. depth: number of parts of its location before the key."""
    key = "".join(map(str, detail["loc"][depth : depth + 1]))
    if detail["type"] == "value_error":
        return f"{key}: {detail['msg'].removeprefix('Value error, ')}"
    alike = [other for other in same_key if other["input"] == detail["input"]]
    return f"{key and f'{key}='}{detail['input']} must be {' or '.join(dict.fromkeys(map(_expected, alike)))}"


def _expected(detail: ErrorDetails) -> str:
    words = _EXPECTED.get(detail["type"], detail["msg"].removeprefix("Input should be "))
    return words.format(**detail.get("ctx", {}))


Options = TypeVar("Options", bound=BaseModel)


DEFAULT_ROUNDS, MOST_ROUNDS = 5, 1000
FLAGS = ("repeats", "budget", "seconds", "parity", "price_per_hour", "apply")
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
    kind: str = Field(description=", ".join(KINDS))


@dataclass(frozen=True)
class Request:
    """The command line of a study.

    name: stem of the study's file. typed: the name or file as typed. options: keys of the file, without title and kind.
    overrides: of train.py, for all rows. repeats: number of rounds; None to measure as many as fit into budget_seconds.
    seconds: of each timed stretch. parity_steps: training steps for comparing losses; 0 to skip the comparison.
    price_per_hour: of the machine, if known. apply: whether to write the useful steps as an experiment. folder: keeps
    the results, so that a stopped study resumes. json: another file for all results. command: the complete command
    line.
    """

    name: str
    title: str
    kind: str
    options: dict[str, Any]
    overrides: tuple[str, ...]
    repeats: int | None
    seconds: float
    parity_steps: int
    price_per_hour: float | None
    folder: Path
    apply: bool = False
    command: str = ""
    typed: str = ""
    budget_seconds: float = 0.0
    json: Path | None = None

    @property
    def num_rounds(self) -> int:
        """Number of rounds for measurements that are not limited by the budget."""
        return self.repeats or DEFAULT_ROUNDS


def read_study(name: str, changes: Sequence[str] = ()) -> tuple[str, StudyFile]:
    """Read a study by the name of a shipped study or by its path; also return the file's stem.

    changes: new values of keys, such as "num_workers=[4,8]". Raises ConfigError for unknown names, with similar names,
    and for invalid files.
    """
    file = _file_of(name)
    changed = _values(changes)
    try:
        written: Any = OmegaConf.to_container(OmegaConf.load(file))
        written = written | changed if isinstance(written, dict) else written
        study = StudyFile.model_validate(written)
    except (YAMLError, UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"study={name}: the file cannot be read: {' '.join(str(error).split())}") from error
    except ValidationError as error:
        raise ConfigError(f"study={name}: {_first_mistake(error, StudyFile, written)}") from error
    if study.kind not in KINDS:
        raise ConfigError(f"study={name}: kind={study.kind} must be one of {', '.join(KINDS)}")
    return file.stem, study


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


def _values(changes: Sequence[str]) -> dict[str, Any]:
    """Parse KEY=VALUE texts. Raises ConfigError."""
    try:
        values: Any = OmegaConf.to_container(OmegaConf.from_dotlist(list(changes)))
    except YAMLError as error:
        words = " ".join(f"study.{change}" for change in changes)
        raise ConfigError(f"{words}: not valid YAML; expected a value such as study.num_workers=[4,8]") from error
    return dict(values)


def checked_options(model: type[Options], request: Request) -> Options:
    """Validate the options of a study's file with the model of its kind. Raises ConfigError that names the key."""
    with mistakes_in_file(request):
        try:
            return model.model_validate(request.options)
        except ValidationError as error:
            raise ConfigError(_first_mistake(error, model, request.options)) from error


@contextmanager
def mistakes_in_file(request: Request, key: str = "") -> Iterator[None]:
    """Name the study's file, and a key of it, in ConfigErrors about its content."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"study={request.typed or request.name}: {key}{error}") from error
