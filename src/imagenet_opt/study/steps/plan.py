"""The rows of a study of steps: which overrides each has, what it is compared with, and which cannot be here."""

from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, PositiveFloat

from imagenet_opt.config.build import check_config
from imagenet_opt.config.compose import composed
from imagenet_opt.errors import ConfigError, ImagenetOptError

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
"""Below the rows of a plain start as well, and in no experiment: it belongs to the recipe, which is the user's."""
NOT_HERE = "there is no GPU here"
NOT_MIXED = "mixed is 32-true on this CPU"
_ROUNDED_FROM, _MULTIPLE = 64, 8
"""A batch from so many images on is made a multiple that tensor cores want, which moves it by a sixteenth at most."""


class Step(BaseModel):
    """overrides: of train.py. batch_factor: times the batch of the start. needs: "gpu" where it is nothing without one.

    other_loss: why its loss cannot be that of what it is compared with; it is then not compared.
    instead_of: an earlier step that it replaces: it stands on what that one stands on, and no later step stands on it.
    """

    model_config = ConfigDict(extra="forbid")
    name: str
    overrides: list[str] = []
    batch_factor: PositiveFloat | None = None
    needs: Literal["gpu"] | None = None
    other_loss: str | None = None
    instead_of: str | None = None


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
        return (*PLAIN, *UNMIXED) if self.start == "plain" else tuple(self.start)

    @property
    def lasting(self) -> tuple[str, ...]:
        """Those of them that an experiment made of the study has as well."""
        return PLAIN if self.start == "plain" else tuple(self.start)


@dataclass(frozen=True)
class Row:
    """step: None for the first row, which nothing is compared with."""

    name: str
    step: Step | None


class Plan:
    """The study's rows in their order. `drop` one that fails: it is compared with nothing, and where steps build on
    each other those after it do without it, unless they have been measured with it.

    mixed: what trainer.precision=mixed means on this device. Raises ConfigError for a file that contradicts itself.
    """

    def __init__(
        self,
        file: StepsFile,
        overrides: tuple[str, ...],
        *,
        batch_size: int,
        has_gpu: bool,
        mixed: str,
    ) -> None:
        _check(file)
        self.file = file
        self.overrides = overrides
        self.batch_size = batch_size
        self.absent = {step.name: NOT_HERE for step in file.steps if step.needs == "gpu" and not has_gpu}
        if mixed == "32-true":
            unmixed = [step.name for step in file.steps if "trainer.precision=mixed" in step.overrides]
            self.absent = dict.fromkeys(unmixed, NOT_MIXED) | self.absent
        first = "all of them" if file.order == "leave_one_out" else "start"
        self.rows = [Row(first, None), *(Row(step.name, step) for step in file.steps if step.name not in self.absent)]
        self.dropped: set[str] = set()
        self._without: set[str] = set()

    def left_out(self) -> list[str]:
        """Why steps are absent, each reason with the names of its steps."""
        return [
            f"{reason}: {'; '.join(name for name, other in self.absent.items() if other == reason)}"
            for reason in dict.fromkeys(self.absent.values())
        ]

    def drop(self, row: Row, *, first_round: bool) -> None:
        self.dropped.add(row.name)
        if first_round and self.file.order == "cumulative":
            self._without.add(row.name)

    def overrides_of(self, row: Row) -> tuple[str, ...]:
        """What it is trained with."""
        if self.file.order == "leave_one_out":
            steps = [other.step for other in self.rows if other.step and other is not row]
        else:
            steps = [*self._steps(self._ground(row)), *([row.step] if row.step else [])]
        return (*self.overrides, *self.file.below, *(word for step in steps for word in self.words(step)))

    def base_of(self, row: Row) -> Row:
        """What it is compared with."""
        return next(other for other in reversed(self._ground(row)) if other.name not in self.dropped)

    def also(self, row: Row) -> list[Step]:
        """Steps that it stands on and that what it is compared with has not: they failed in a later round."""
        ground = self._ground(row)
        return self._steps(ground[ground.index(self.base_of(row)) + 1 :])

    def other_loss(self, row: Row) -> str | None:
        """Why its loss is another one than that of what it is compared with by what it does; None where it must be the
        same."""
        assert row.step is not None
        return next((step.other_loss for step in [row.step, *self.also(row)] if step.other_loss), None)

    def pair(self, row: Row) -> tuple[str, str]:
        """Names of the row that has the step, and of the one that has it not."""
        with_it, without = row.name, self.base_of(row).name
        return (without, with_it) if self.file.order == "leave_one_out" else (with_it, without)

    def alternatives(self) -> list[list[str]]:
        """Names of steps that replace each other; a step that none replaces is by itself."""
        found: dict[str, list[str]] = {}
        for step in (row.step for row in self.rows if row.step):
            found.setdefault(step.instead_of or step.name, []).append(step.name)
        return list(found.values())

    def replaced(self) -> list[tuple[str, str]]:
        """Overrides of the command line that the start undoes, each with what it sets there."""
        starts = {key_of(word): word for word in self.file.below}
        given = [(word, starts[key_of(word)]) for word in self.overrides if key_of(word) in starts]
        return [(word, start) for word, start in given if _value(word) != _value(start)]

    def notes(self) -> list[str]:
        """Rows whose worth includes that of another step."""
        if self.file.order != "cumulative":
            return []
        found = []
        for row in self.rows:
            if row.name not in self.dropped and (more := [step.name for step in self.also(row)]):
                found.append(
                    f"{row.name} was measured on top of {', '.join(more)}, which failed later: its worth includes that."
                )
        return found

    def words(self, step: Step) -> list[str]:
        """Its overrides, with the batch size that its factor makes."""
        if step.batch_factor is None:
            return step.overrides
        size = self.batch_size * step.batch_factor
        multiple = _MULTIPLE if size >= _ROUNDED_FROM else 1
        return [*step.overrides, f"data.batch_size={max(1, multiple * round(size / multiple))}"]

    def _ground(self, row: Row) -> list[Row]:
        """Rows that it can stand on: the first one, and in a ladder those before it or before what it replaces."""
        names = [step.name for step in self.file.steps]
        if self.file.order != "cumulative" or row.step is None:
            return self.rows[:1]
        end = names.index(row.step.instead_of or row.name)
        steps = [other for other in self.rows if other.step and not other.step.instead_of]
        return [self.rows[0], *(other for other in steps if names.index(other.name) < end)]

    def _steps(self, rows: list[Row]) -> list[Step]:
        """What those after them are trained with."""
        return [row.step for row in rows if row.step and row.name not in self._without]


def _check(file: StepsFile) -> None:
    """Raises ConfigError."""
    names = [step.name for step in file.steps]
    if len(set(names)) < len(names) or not names:
        raise ConfigError(f"steps: expected one or more, each with a name of its own, found {', '.join(names)}")
    for word in (*file.below, *(word for step in file.steps for word in step.overrides)):
        if word.lstrip("+~").startswith(("allow_targets", "hydra")):
            raise ConfigError(f"a study's file may not set {word}; say it on the command line")
    earlier: list[str] = []
    for step in file.steps:
        if step.instead_of is None:
            earlier.append(step.name)
        elif file.order == "leave_one_out":
            raise ConfigError(
                f"steps: {step.name}: instead_of={step.instead_of} contradicts order: leave_one_out, which has all "
                "steps on at once; keep one of the two"
            )
        elif step.instead_of not in earlier:
            raise ConfigError(
                f"steps: {step.name}: instead_of={step.instead_of} must be the name of a step before it that replaces "
                f"none itself: {', '.join(earlier) or 'there is none'}"
            )


def key_of(word: str) -> str:
    """That an override sets."""
    return word.lstrip("+~").partition("=")[0]


def _value(word: str) -> str:
    return word.partition("=")[2].strip("'\"")


def check_rows(plan: Plan) -> None:
    """Their keys and values; no data is read and no network built. Raises ConfigError with the row's name."""
    for row in plan.rows:
        if row.step and not row.step.overrides and row.step.batch_factor is None:
            raise ConfigError(f"{row.name}: the step changes nothing; give it overrides or batch_factor")
        try:
            check_config(composed(plan.overrides_of(row)))
        except ImagenetOptError as error:
            raise ConfigError(f"{row.name}: {error}") from error
