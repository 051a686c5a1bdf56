"""Plans the rows of a study of steps: their overrides, what each is compared with, and which are left out."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import Any, Literal

from omegaconf import OmegaConf
from pydantic import BaseModel, ConfigDict, PositiveFloat

from imagenet_opt.config.build import check_config
from imagenet_opt.config.compose import composed
from imagenet_opt.config.overrides import key_of, value_of
from imagenet_opt.display.progress import duration
from imagenet_opt.errors import ConfigError, ImagenetOptError
from imagenet_opt.study.request import Request

Order = Literal["cumulative", "alone", "leave_one_out"]
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
NOT_HERE = "there is no GPU here"
NOT_MIXED = "mixed is 32-true on this CPU"
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

    @property
    def place(self) -> str:
        """How messages name this part of the file."""
        return f"step '{self.name}'"


class StepsFile(BaseModel):
    """A study's file.

    start: overrides that every row has before its steps, or "plain". order: whether each step is measured on top of
    the steps before it, alone, or by leaving it out of all steps.
    """

    model_config = ConfigDict(extra="forbid")
    order: Order
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
    of the row. pair: names of the row with the step and the row without it; None for the first row. also: steps that
    the row has and its base lacks, because these steps failed after the first round. other_loss: the reason why the
    row's loss differs from its base on purpose. is_ground: whether later rows build on this step.
    """

    name: str
    step: Step | None
    own: tuple[str, ...]
    overrides: tuple[str, ...]
    pair: tuple[str, str] | None = None
    also: tuple[str, ...] = ()
    other_loss: str | None = None
    is_ground: bool = False

    @property
    def base(self) -> str | None:
        """Name of the row that this row is compared with."""
        return next((name for name in self.pair or () if name != self.name), None)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The composed configuration in plain values. Raises ConfigError."""
        config = composed(self.overrides)
        check_config(config)
        plain: Any = OmegaConf.to_container(config)
        return dict(plain)


class Plan:
    """Decides which steps can be measured here, and builds the rows.

    mixed: meaning of trainer.precision=mixed on this device. Raises ConfigError for a study file that contradicts
    itself.
    """

    def __init__(
        self, file: StepsFile, overrides: tuple[str, ...], *, batch_size: int, has_gpu: bool, mixed: str
    ) -> None:
        _check(file)
        self.file, self.overrides, self.batch_size, self.has_gpu = file, overrides, batch_size, has_gpu
        self.absent = {step.name: NOT_HERE for step in file.steps if step.needs == "gpu" and not has_gpu}
        if mixed == "32-true":
            unmixed = [step.name for step in file.steps if "trainer.precision=mixed" in step.overrides]
            self.absent = dict.fromkeys(unmixed, NOT_MIXED) | self.absent
        self.steps = [step for step in file.steps if step.name not in self.absent]

    def rows(self, failed: Mapping[str, int] | None = None) -> list[Row]:
        """Build the rows; the first row has no step.

        failed: by name, the round (from 0) in which a row failed. Nothing is compared with a failed row. In a ladder,
        the rows after a row that failed in round 0 are trained without its step.
        """
        is_leave_one_out = self.file.order == "leave_one_out"
        name, steps = ("all of them", self.steps) if is_leave_one_out else ("start", [])
        first = Row(name, None, self.file.below, self._overrides(steps))
        return [first, *(self._row(step, first.name, failed or {}) for step in self.steps)]

    def _row(self, step: Step, first: str, failed: Mapping[str, int]) -> Row:
        own, below = tuple(self.words(step)), self._below(step)
        if self.file.order == "leave_one_out":
            others = [other for other in self.steps if other is not step]
            return Row(step.name, step, own, self._overrides(others), (first, step.name), other_loss=step.other_loss)
        passed_over = list(takewhile(lambda other: other.name in failed, reversed(below)))
        base = below[-1 - len(passed_over)].name if len(passed_over) < len(below) else first
        also = [other for other in reversed(passed_over) if failed[other.name] > 0]
        return Row(
            step.name,
            step,
            own,
            self._overrides([*(other for other in below if failed.get(other.name) != 0), step]),
            (step.name, base),
            tuple(other.name for other in also),
            next((other.other_loss for other in [step, *also] if other.other_loss), None),
            is_ground=self.file.order == "cumulative" and not step.instead_of,
        )

    def _overrides(self, steps: Iterable[Step]) -> tuple[str, ...]:
        return (*self.overrides, *self.file.below, *(word for step in steps for word in self.words(step)))

    def _below(self, step: Step) -> list[Step]:
        """The steps of a ladder that this step builds on."""
        if self.file.order != "cumulative":
            return []
        names = [other.name for other in self.file.steps]
        end = names.index(step.instead_of or step.name)
        return [other for other in self.steps if not other.instead_of and names.index(other.name) < end]

    def remarks(self, name: str) -> list[str]:
        """Lines about ignored parts of the command line and of the study `name`."""
        starts = {key_of(word): word for word in self.file.below}
        both = [(word, starts[key_of(word)]) for word in self.overrides if key_of(word) in starts]
        differ = [pair for pair in both if len({value_of(word).strip("'\"") for word in pair}) > 1]
        replaced = [f"{word} (the study starts with {start})" for word, start in differ]
        lines = [f"study={name} replaces overrides of the command line: {', '.join(replaced)}"] if replaced else []
        return [*lines, *(f"left out, as {reason}" for reason in self.left_out())]

    def left_out(self) -> list[str]:
        """For each reason why steps are left out, the reason and their names."""
        return [
            f"{reason}: {'; '.join(name for name, other in self.absent.items() if other == reason)}"
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

    def summary(self) -> str:
        """A sentence about the coming measurements."""
        num, request = len(self.rows), self.request
        losses = (
            f"; then each row trains {request.parity_steps} steps to compare the losses" if request.parity_steps else ""
        )
        if request.repeats is None:
            time = f"as many as {duration(request.budget_seconds)} are enough for"
            return f"{num} rows, two rounds, however long these take, then {time}{losses}"
        rounds = f"{request.repeats} rounds of the full pipeline and of the network alone"
        return f"{num} rows, {rounds}{losses}"


def _check(file: StepsFile) -> None:
    """Check names, overrides and replaced steps. Raises ConfigError."""
    names = [step.name for step in file.steps]
    if not names:
        raise ConfigError("steps: expected one or more")
    if twice := [name for name, num in Counter(names).items() if num > 1]:
        raise ConfigError(f"steps: several are named {', '.join(twice)}; give each a name of its own")
    words = {"start": file.below} | {step.place: tuple(step.overrides) for step in file.steps}
    for place, word in ((place, word) for place, some in words.items() for word in some):
        if key_of(word).startswith("hydra"):
            raise ConfigError(f"{place}: a study's file may not set {word}; set it on the command line")
    earlier: list[str] = []
    for step in file.steps:
        if step.instead_of is None:
            earlier.append(step.name)
        elif file.order == "leave_one_out":
            reason = "contradicts order: leave_one_out, which has all steps on at once; keep one of the two"
            raise ConfigError(f"{step.place}: instead_of={step.instead_of} {reason}")
        elif step.instead_of not in earlier:
            expected = f"an earlier step without instead_of: {', '.join(earlier)}" if earlier else "an earlier step"
            raise ConfigError(f"{step.place}: instead_of={step.instead_of} must name {expected}")


def check_rows(rows: Iterable[Row]) -> None:
    """Check the keys and values of all rows without reading data. Raises ConfigError with the row's name."""
    for row in rows:
        name = row.step.place if row.step else row.name
        if row.step and not row.own:
            raise ConfigError(f"{name}: it changes nothing; give it overrides or batch_factor")
        try:
            _ = row.config
        except ImagenetOptError as error:
            raise ConfigError(f"{name}: {error}") from error
