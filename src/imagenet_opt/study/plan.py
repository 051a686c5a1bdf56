"""Plans the rows of a study of steps: their overrides, what each is compared with, and which are left out."""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from omegaconf import OmegaConf
from pydantic import BaseModel, ConfigDict, PositiveFloat

from imagenet_opt.config.build import check_config
from imagenet_opt.config.compose import composed
from imagenet_opt.config.overrides import key_of, value_of
from imagenet_opt.errors import ConfigError, ImagenetOptError
from imagenet_opt.study.request import Request

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
_ROUNDED_FROM, _MULTIPLE = 64, 8
"""Batches of at least _ROUNDED_FROM images become a multiple of _MULTIPLE for tensor cores; their size changes by a
sixteenth at most."""


class Step(BaseModel):
    """A step of a study's file.

    overrides: of train.py. batch_factor: multiplies the batch size. needs: "gpu" if the step does nothing without one.
    other_loss: the reason why its loss must differ; then it is not compared. instead_of: name of an earlier step that
    this step replaces. Later steps build on the replaced step.
    """

    model_config = ConfigDict(extra="forbid")
    name: str
    overrides: list[str] = []
    batch_factor: PositiveFloat | None = None
    needs: Literal["gpu"] | None = None
    other_loss: str | None = None
    instead_of: str | None = None


class StepsFile(BaseModel):
    """A study's file.

    start: overrides that every row has before its steps, or "plain". order: whether each step is measured on top of
    the steps before it, alone, or by leaving it out of all steps.
    """

    model_config = ConfigDict(extra="forbid")
    order: Literal["cumulative", "alone", "leave_one_out"]
    start: list[str] | Literal["plain"] = []
    steps: list[Step]

    @property
    def below(self) -> tuple[str, ...]:
        """Overrides of the start."""
        return (*PLAIN, *UNMIXED) if self.start == "plain" else tuple(self.start)

    @property
    def lasting(self) -> tuple[str, ...]:
        """The overrides of the start that an experiment from this study also sets."""
        return PLAIN if self.start == "plain" else tuple(self.start)


@dataclass(frozen=True)
class Row:
    """A configuration that is measured.

    step: None for the first row. own: overrides of the step, or of the start in the first row. overrides: all overrides
    of the row. pair: names of the row with the step and the row without it; None for the first row. is_ground: whether
    later rows build on this step.
    """

    name: str
    step: Step | None
    own: tuple[str, ...]
    overrides: tuple[str, ...]
    pair: tuple[str, str] | None = None
    is_ground: bool = False

    @property
    def base(self) -> str | None:
        """Name of the row that this row is compared with."""
        return next((name for name in self.pair or () if name != self.name), None)

    @property
    def other_loss(self) -> str | None:
        """The reason why the loss differs from that of the base on purpose."""
        return self.step.other_loss if self.step else None

    @cached_property
    def config(self) -> dict[str, Any]:
        """The composed configuration in plain values. Raises ConfigError."""
        config = composed(self.overrides)
        check_config(config)
        plain: Any = OmegaConf.to_container(config)
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
        self.file, self.overrides, self.batch_size, self.has_gpu = file, overrides, batch_size, has_gpu
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
        is_leave_one_out = self.file.order == "leave_one_out"
        name, steps = ("all of them", self.steps) if is_leave_one_out else ("start", [])
        first = Row(name, None, self.file.below, self._overrides(steps))
        return [first, *(self._row(step, first.name, failed) for step in self.steps)]

    def _row(self, step: Step, first: str, failed: Collection[str]) -> Row:
        own = tuple(self.words(step))
        if self.file.order == "leave_one_out":
            others = [other for other in self.steps if other is not step]
            return Row(step.name, step, own, self._overrides(others), (first, step.name))
        below = [other for other in self._below(step) if other.name not in failed]
        base = below[-1].name if below else first
        is_ground = self.file.order == "cumulative" and not step.instead_of
        return Row(step.name, step, own, self._overrides([*below, step]), (step.name, base), is_ground)

    def _overrides(self, steps: Iterable[Step]) -> tuple[str, ...]:
        return (*self.overrides, *self.file.below, *(word for step in steps for word in self.words(step)))

    def _below(self, step: Step) -> list[Step]:
        """The steps of a ladder that this step builds on."""
        if self.file.order != "cumulative":
            return []
        names = [other.name for other in self.file.steps]
        end = names.index(step.instead_of or step.name)
        return [other for other in self.steps if not other.instead_of and names.index(other.name) < end]

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


def check_rows(rows: Iterable[Row]) -> None:
    """Check the keys and values of all rows without reading data. Raises ConfigError with the row's name."""
    for row in rows:
        name = f"step '{row.name}'" if row.step else row.name
        if row.step and not row.own:
            raise ConfigError(f"{name}: it changes nothing; give it overrides or batch_factor")
        try:
            _ = row.config
        except ImagenetOptError as error:
            raise ConfigError(f"{name}: {error}") from error
