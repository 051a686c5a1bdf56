"""A study before its measurements: its command line, its file, and the rows of a study of steps."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from omegaconf import OmegaConf
from pydantic import BaseModel, Field, PositiveFloat, PositiveInt, ValidationError
from yaml import YAMLError  # type: ignore[import-untyped]

from imagenet_opt.config.compose import composed
from imagenet_opt.config.overrides import config_folder, key_of, value_of
from imagenet_opt.errors import ConfigError, did_you_mean

Options = TypeVar("Options", bound=BaseModel)
Sizes = Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
"""One or more positive numbers in a study's file."""
DEFAULT_ROUNDS = 5
FLAGS = ("repeats", "budget", "seconds", "parity", "apply")
"""Options of the command line that only some kinds of study accept."""
KINDS = {"steps": FLAGS, "queue": ("repeats",), "anatomy": ("seconds",)}
KINDS |= dict.fromkeys(("scaling", "read", "shapes", "streams", "torchscript"), ("repeats", "seconds"))
"""By kind of study, the FLAGS that it accepts."""
PLAIN = (
    "trainer.precision=32-true",
    "trainer.deterministic=false",
    "optimizer.fused=false",
    "model.set_to_none=false",
    "data.copies=pageable",
    "data.resize_on=worker",
    "data.region_decode=false",
    *(
        f"callbacks.acceleration.{name}=false"
        for name in ("channels_last", "tf32", "cudnn_benchmark", "gradient_checkpointing", "cuda_graph")
    ),
    *(f"callbacks.acceleration.{name}" for name in ("compile=false", "compile_mode=default", "fullgraph=false")),
)
"""Training before any optimisation: `start: plain`."""
UNMIXED = ("callbacks.mixing.mode='off'",)
"""Also part of a plain start, but of no experiment: mixing belongs to the user's recipe."""
START, ALL = "start", "all of them"
"""Names of the first row: without steps, and of leave_one_out."""
_ROUNDED_FROM, _MULTIPLE = 64, 8
"""Batches of at least _ROUNDED_FROM images become a multiple of _MULTIPLE for tensor cores; their size changes by a
sixteenth at most."""


class StudyFile(BaseModel, extra="allow"):
    """Keys that every file in conf/study has; each kind adds its own."""

    title: str
    kind: str


class Step(BaseModel, extra="forbid"):
    """A step of a study's file.

    overrides: of train.py. batch_factor: multiplies the batch size. needs: "gpu" if the step does nothing without one.
    other_loss: the reason why its loss must differ; then it is not compared. instead_of: name of an earlier step that
    this step replaces. Later steps build on the replaced step.
    """

    name: str
    overrides: list[str] = []
    batch_factor: PositiveFloat | None = None
    needs: Literal["gpu"] | None = None
    other_loss: str | None = None
    instead_of: str | None = None


class StepsFile(BaseModel, extra="forbid"):
    """The file of a study of steps.

    start: overrides that every row has before its steps, or "plain". order: whether each step is measured on top of
    the steps before it, alone, or by leaving it out of all steps.
    """

    order: Literal["cumulative", "alone", "leave_one_out"]
    start: list[str] | Literal["plain"] = []
    steps: list[Step]

    @property
    def below(self) -> tuple[str, ...]:
        """Overrides of the start."""
        return (*PLAIN, *UNMIXED) if self.start == "plain" else tuple(self.start)


@dataclass(frozen=True)
class Request:
    """The command line of a study.

    name: of the study, or its file, as typed. options: keys of the file, without title and kind. overrides: of
    train.py, for all rows. repeats: number of rounds; None to measure LEAST_ROUNDS, and as many more as fit into
    budget_seconds. seconds: of each timed stretch. parity_steps: training steps for comparing losses; 0 to skip the
    comparison. apply: whether to write the useful steps as an experiment. folder: keeps the results, so that a stopped
    study resumes. command: the complete command line.
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
    shipped = {file.stem: file for file in sorted((config_folder() / "study").glob("*.yaml"))}
    if name not in shipped:
        hint = did_you_mean(name, shipped, f"expected {', '.join(shipped)}, or a YAML file")
        raise ConfigError(f"study={name}: there is no such study; {hint}")
    return shipped[name]


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


@dataclass(frozen=True)
class Row:
    """A configuration that is measured.

    step: None for the first row. own: overrides of the step, or of the start in the first row. overrides: all overrides
    of the row. pair: names of the row with the step and the row without it; None for the first row.
    """

    name: str
    step: Step | None
    own: tuple[str, ...]
    overrides: tuple[str, ...]
    pair: tuple[str, str] | None = None

    @property
    def base(self) -> str | None:
        """Name of the row that this row is compared with."""
        return next((name for name in self.pair or () if name != self.name), None)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The composed configuration in plain values. Raises ConfigError."""
        plain: Any = OmegaConf.to_container(composed(self.overrides))
        return dict(plain)


class Plan:
    """Decides which steps can be measured here, and builds the rows.

    mixed: meaning of trainer.precision=mixed on this device. absent: the reasons why steps are left out, by name.
    Raises ConfigError for a study file that contradicts itself.
    """

    def __init__(
        self, file: StepsFile, overrides: tuple[str, ...], *, batch_size: int, has_gpu: bool, mixed: str
    ) -> None:
        _check(file)
        self.file, self.overrides, self.batch_size = file, overrides, batch_size
        self.absent: dict[str, str] = {}
        for step in file.steps:
            if step.needs == "gpu" and not has_gpu:
                self.absent[step.name] = "there is no GPU here"
            elif mixed == "32-true" and "trainer.precision=mixed" in step.overrides:
                self.absent[step.name] = "mixed is 32-true on this CPU"
        self.steps = [step for step in file.steps if step.name not in self.absent]

    def rows(self, failed: Collection[str] = ()) -> list[Row]:
        """Build the rows; the first row has no step. failed: names of rows that failed in the first round. In a ladder
        the rows after them are trained without their steps."""
        if self.file.order == "leave_one_out":
            rows = [self._row(ALL, None, self.steps)]
            for step in self.steps:
                rows.append(self._row(step.name, step, [other for other in self.steps if other is not step], ALL))
            return rows
        rows, below, below_of = [self._row(START, None, [])], list[Step](), dict[str, list[Step]]()
        for step in self.file.steps:
            below_of[step.name] = before = below_of[step.instead_of] if step.instead_of else below
            if step.name not in self.absent:
                base = before[-1].name if before else START
                rows.append(self._row(step.name, step, [*before, step], base))
                if self.file.order == "cumulative" and not step.instead_of and step.name not in failed:
                    below = [*before, step]
        return rows

    def _row(self, name: str, step: Step | None, trained: Sequence[Step], base: str | None = None) -> Row:
        """The row that trains these steps. base: name of the row that it is compared with."""
        words = (word for each in trained for word in self.words(each))
        pair = None if base is None else (base, name) if self.file.order == "leave_one_out" else (name, base)
        own = tuple(self.words(step)) if step else self.file.below
        return Row(name, step, own, (*self.overrides, *self.file.below, *words), pair)

    def replaced(self) -> list[str]:
        """The overrides of the command line to which the study's start gives another value."""
        starts = {key_of(word): value_of(word).strip("'\"") for word in self.file.below}
        values = {word: value_of(word).strip("'\"") for word in self.overrides}
        return [word for word, value in values.items() if starts.get(key_of(word), value) != value]

    def left_out(self) -> list[str]:
        """For each reason why steps are left out, a sentence with their names."""
        return [
            f"Left out, as {reason}: {'; '.join(name for name, other in self.absent.items() if other == reason)}."
            for reason in dict.fromkeys(self.absent.values())
        ]

    def words(self, step: Step) -> list[str]:
        """Overrides of a step, including the batch size from its factor."""
        if step.batch_factor is None:
            return step.overrides
        size = self.batch_size * step.batch_factor
        multiple = _MULTIPLE if size >= _ROUNDED_FROM else 1
        return [*step.overrides, f"data.batch_size={max(1, multiple * round(size / multiple))}"]


@dataclass(frozen=True)
class Study:
    """A study before its measurements. cold: whether full runs read files from storage instead of memory."""

    plan: Plan
    request: Request
    rows: list[Row]
    cold: bool


def _check(file: StepsFile) -> None:
    """Check names, overrides and replaced steps. Raises ConfigError."""
    names = Counter(step.name for step in file.steps)
    if not names or max(names.values()) > 1:
        twice = [name for name, num in names.items() if num > 1]
        raise ConfigError(f"steps: expected one or more with different names; several are named {', '.join(twice)}")
    for word in (*file.below, *(word for step in file.steps for word in step.overrides)):
        if key_of(word).startswith("hydra"):
            raise ConfigError(f"a study's file may not set {word}; set it on the command line")
    earlier: list[str] = []
    for step in file.steps:
        if step.instead_of is None:
            earlier.append(step.name)
        elif step.instead_of not in earlier or file.order == "leave_one_out":
            expected = f"an earlier step without instead_of: {', '.join(earlier)}"
            if file.order == "leave_one_out":
                expected = "nothing with order: leave_one_out, which has all steps on at once"
            raise ConfigError(f"step '{step.name}': instead_of={step.instead_of} must name {expected}")
