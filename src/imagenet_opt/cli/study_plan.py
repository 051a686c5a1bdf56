"""The rows of a study of steps: which overrides each has, what it is compared with, and which cannot be here."""

from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, PositiveFloat

from imagenet_opt.errors import ConfigError

Order = Literal["cumulative", "alone", "leave_one_out"]
PLAIN = (
    "trainer.precision=32-true",
    "trainer.deterministic=false",
    "optimizer.fused=false",
    "model.set_to_none=false",
    "data.copies=pageable",
    "data.resize_on=worker",
    "callbacks.mixing.mode='off'",
    *(
        f"callbacks.acceleration.{name}=false"
        for name in ("channels_last", "tf32", "cudnn_benchmark", "gradient_checkpointing", "cuda_graph")
    ),
    *(f"callbacks.acceleration.{name}" for name in ("compile=false", "compile_mode=default", "fullgraph=false")),
)
"""Training before any optimisation: `start: plain`."""
NOT_HERE = "there is no GPU here"


class Step(BaseModel):
    """overrides: of train.py. batch_factor: times the batch of the start. needs: "gpu" where it is nothing without one.

    other_loss: why its loss cannot be that of the start, which is then not compared.
    """

    model_config = ConfigDict(extra="forbid")
    name: str
    overrides: list[str] = []
    batch_factor: PositiveFloat | None = None
    needs: Literal["gpu"] | None = None
    other_loss: str | None = None


class StepsFile(BaseModel):
    """start: overrides below all steps, or "plain". order: a step is measured on top of those before it, alone, or by
    leaving it out of all."""

    model_config = ConfigDict(extra="forbid")
    order: Order
    start: list[str] | Literal["plain"] = []
    steps: list[Step]

    @property
    def below(self) -> tuple[str, ...]:
        """Overrides of the start."""
        return PLAIN if self.start == "plain" else tuple(self.start)


@dataclass(frozen=True)
class Row:
    """step: None for the first row, which nothing is compared with."""

    name: str
    step: Step | None


class Plan:
    """The study's rows in their order. `drop` one that fails: it is compared with nothing, and where steps build on
    each other those after it do without it, unless they have been measured with it."""

    def __init__(self, file: StepsFile, overrides: tuple[str, ...], *, batch_size: int, has_gpu: bool) -> None:
        names = [step.name for step in file.steps]
        if len(set(names)) < len(names) or not names:
            raise ConfigError(f"steps: expected one or more, each with a name of its own, found {', '.join(names)}")
        for word in (*file.below, *(word for step in file.steps for word in step.overrides)):
            if word.lstrip("+~").startswith(("allow_targets", "hydra")):
                raise ConfigError(f"a study's file may not set {word}; say it on the command line")
        self.file = file
        self.overrides = overrides
        self.batch_size = batch_size
        self.absent = {step.name: NOT_HERE for step in file.steps if step.needs == "gpu" and not has_gpu}
        first = "all of them" if file.order == "leave_one_out" else "start"
        self.rows = [Row(first, None), *(Row(step.name, step) for step in file.steps if step.name not in self.absent)]
        self.dropped: set[str] = set()
        self._without: set[str] = set()

    def drop(self, row: Row, *, first_round: bool) -> None:
        self.dropped.add(row.name)
        if first_round and self.file.order == "cumulative":
            self._without.add(row.name)

    def overrides_of(self, row: Row) -> tuple[str, ...]:
        """What it is trained with."""
        steps = [other.step for other in self.rows if other.step and other.name not in self._without]
        if self.file.order == "leave_one_out":
            steps = [step for step in steps if step is not row.step]
        elif self.file.order == "alone" or row.step is None:
            steps = [row.step] if row.step else []
        else:
            kept = [step for step in steps if self._place(step) < self._place(row.step)]
            steps = [*kept, row.step]
        return (*self.overrides, *self.file.below, *(word for step in steps for word in self.words(step)))

    def base_of(self, row: Row) -> Row:
        """What it is compared with."""
        if self.file.order != "cumulative":
            return self.rows[0]
        before = self.rows[: self.rows.index(row)]
        return next(other for other in reversed(before) if other.name not in self.dropped)

    def other_loss(self, row: Row) -> str | None:
        """Why a row's loss is another one than the first row's by what it does; None where it must be the same."""
        assert row.step is not None
        before = self.rows[1 : self.rows.index(row)] if self.file.order == "cumulative" else []
        steps = [other.step for other in before if other.step and other.name not in self._without]
        return next((step.other_loss for step in [row.step, *steps] if step.other_loss), None)

    def pair(self, row: Row) -> tuple[str, str]:
        """Names of the row that has the step, and of the one that has it not."""
        with_it, without = row.name, self.base_of(row).name
        return (without, with_it) if self.file.order == "leave_one_out" else (with_it, without)

    def _place(self, step: Step) -> int:
        return self.file.steps.index(step)

    def words(self, step: Step) -> list[str]:
        """Its overrides, with the batch size that its factor makes."""
        if step.batch_factor is None:
            return step.overrides
        return [*step.overrides, f"data.batch_size={max(1, round(self.batch_size * step.batch_factor))}"]
