"""The rows of a study of steps."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from omegaconf import OmegaConf

from imagenet_opt.config.compose import composed
from imagenet_opt.config.overrides import key_of, value_of
from imagenet_opt.errors import ConfigError
from imagenet_opt.study.file import Request, StepsFile, StudyStep

START, ALL = "start", "all of them"
"""Names of the first row: without steps, and of leave_one_out."""
_ROUNDED_FROM, _MULTIPLE = 64, 8
"""Batches of at least _ROUNDED_FROM images become a multiple of _MULTIPLE for tensor cores; their size changes by a
sixteenth at most."""


@dataclass(frozen=True)
class StudyRow:
    """A configuration that is measured.

    step: None for the first row. own: overrides of the step, or of the start in the first row. overrides: all overrides
    of the row. pair: names of the row with the step and the row without it; None for the first row.
    """

    name: str
    step: StudyStep | None
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


class StudyPlan:
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

    def rows(self, failed: Collection[str] = ()) -> list[StudyRow]:
        """Build the rows; the first row has no step. failed: names of rows that failed in the first round. In a ladder
        the rows after them are trained without their steps."""
        if self.file.order == "leave_one_out":
            rows = [self._row(ALL, None, self.steps)]
            for step in self.steps:
                rows.append(self._row(step.name, step, [other for other in self.steps if other is not step], ALL))
            return rows
        rows = [self._row(START, None, [])]
        for step in self.steps:
            below = self._below(step, failed)
            rows.append(self._row(step.name, step, [*below, step], below[-1].name if below else START))
        return rows

    def _below(self, step: StudyStep, failed: Collection[str]) -> list[StudyStep]:
        """The steps on top of which this step is measured: in a ladder those that worked, up to its place or to that of
        the step that it replaces."""
        if self.file.order == "alone":
            return []
        names = [other.name for other in self.file.steps]
        earlier = names[: names.index(step.instead_of or step.name)]
        return [
            other
            for other in self.steps
            if other.name in earlier and other.name not in failed and other.instead_of is None
        ]

    def _row(
        self, name: str, step: StudyStep | None, trained: Sequence[StudyStep], base: str | None = None
    ) -> StudyRow:
        """The row that trains these steps. base: name of the row that it is compared with."""
        words = (word for each in trained for word in self.words(each))
        pair = None if base is None else (base, name) if self.file.order == "leave_one_out" else (name, base)
        own = tuple(self.words(step)) if step else self.file.below
        return StudyRow(name, step, own, (*self.overrides, *self.file.below, *words), pair)

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

    def words(self, step: StudyStep) -> list[str]:
        """Overrides of a step, including the batch size from its factor."""
        if step.batch_factor is None:
            return step.overrides
        size = self.batch_size * step.batch_factor
        multiple = _MULTIPLE if size >= _ROUNDED_FROM else 1
        return [*step.overrides, f"data.batch_size={max(1, multiple * round(size / multiple))}"]


@dataclass(frozen=True)
class Study:
    """A study before its measurements. cold: whether full runs read files from storage instead of memory."""

    plan: StudyPlan
    request: Request
    rows: list[StudyRow]
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
