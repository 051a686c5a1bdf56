"""The command line and the file of a study."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

from omegaconf import OmegaConf
from pydantic import BaseModel, Field, PositiveFloat, PositiveInt, ValidationError
from yaml import YAMLError  # type: ignore[import-untyped]

from imagenet_opt.config.overrides import config_folder
from imagenet_opt.errors import ConfigError, did_you_mean

Sizes = Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
"""One or more positive numbers in a study's file."""
DEFAULT_ROUNDS = 5
FLAGS = ("repeats", "budget", "seconds", "parity", "apply")
"""Options of the command line that only some kinds of study accept."""
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


class _File(BaseModel, extra="forbid"):
    """Keys that every study's file has. flags: the FLAGS that studies of this kind accept."""

    title: str
    flags: ClassVar[tuple[str, ...]] = ("repeats", "seconds")


class StudyStep(BaseModel, extra="forbid"):
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


class StepsFile(_File):
    """The file of a study of steps.

    start: overrides that every row has before its steps, or "plain". order: whether each step is measured on top of
    the steps before it, alone, or by leaving it out of all steps.
    """

    flags: ClassVar = FLAGS
    kind: Literal["steps"]
    order: Literal["cumulative", "alone", "leave_one_out"]
    start: list[str] | Literal["plain"] = []
    steps: list[StudyStep]

    @property
    def below(self) -> tuple[str, ...]:
        """Overrides of the start."""
        return (*PLAIN, *UNMIXED) if self.start == "plain" else tuple(self.start)


class ReadFile(_File):
    """num_workers: numbers of processes. reads_in_flight: requests of each process. batch_size: in files."""

    kind: Literal["read"]
    num_workers: Sizes
    reads_in_flight: Sizes
    batch_size: Sizes


class ScalingFile(_File):
    """processes: numbers of processes; 1 is measured in any case."""

    kind: Literal["scaling"]
    processes: Sizes


StudyFile = StepsFile | ReadFile | ScalingFile
KINDS: dict[str, type[StudyFile]] = {"steps": StepsFile, "read": ReadFile, "scaling": ScalingFile}


@dataclass(frozen=True)
class Request:
    """The command line of a study.

    name: of the study, or its file, as typed. overrides: of train.py, for all rows. repeats: number of rounds; None to
    measure LEAST_ROUNDS, and as many more as fit into budget_seconds. seconds: of each timed stretch. parity_steps:
    training steps for comparing losses; 0 to skip the comparison. apply: whether to write the useful steps as an
    experiment. folder: keeps the results, so that a stopped study resumes. command: the complete command line.
    """

    name: str
    file: StudyFile
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
    except (YAMLError, UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"study={name}: {file} or study.KEY=VALUE: {' '.join(str(error).split())}") from error
    keys = {**written, **changed} if isinstance(written, dict) else {}
    if (kind := str(keys.get("kind"))) not in KINDS:
        raise ConfigError(f"study={name}: kind={kind} must be one of {', '.join(KINDS)}")
    try:
        return KINDS[kind].model_validate(keys)
    except ValidationError as error:
        raise ConfigError(f"study={name}: {_first_mistake(error, KINDS[kind])}") from error


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
