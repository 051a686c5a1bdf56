"""What is known of a run when its report is written."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from imagenet_opt.measure.diagnosis import Diagnosis
from imagenet_opt.measure.telemetry.timeline import Timeline

PAUSE_SECONDS = 2.0
"""Without a sample: the run was interrupted, or the machine was."""
IMAGENET_IMAGES = 1_281_167
"""For training. Source: Russakovsky et al., ImageNet Large Scale Visual Recognition Challenge, IJCV 2015."""


class Steps(NamedTuple):
    """How long steps took, in seconds, and whose they are."""

    seconds: tuple[float, ...]
    whose: str

    def __str__(self) -> str:
        return f"{len(self.seconds):,} steps of {self.whose}"


@dataclass(frozen=True)
class Record:
    """A run's files as far as they are there.

    summary, metrics: summary.json, and the rows of metrics.csv with their steps. config: plain containers.
    texts: files to be shown as they are, by name. absent: for each part that is not there, by the name of its field, a
    sentence that says what would make it. command: that made this record.
    """

    name: str
    diagnosis: Diagnosis | None = None
    timeline: Timeline | None = None
    summary: Mapping[str, float] = field(default_factory=dict)
    metrics: Sequence[tuple[int, Mapping[str, float]]] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)
    command: str = ""

    @property
    def simulated(self) -> str | None:
        """Name of an accelerator that was not there, when the doctor measured or while the run trained."""
        if self.diagnosis and self.diagnosis.simulated:
            return self.diagnosis.simulated
        name = dict(leaves(self.config)).get("callbacks.rehearsal.name")
        return None if name is None else str(name)

    @property
    def steps(self) -> Steps | None:
        """Of the run's timeline or of the doctor's full run: the longer series."""
        run = Steps(() if self.timeline is None else step_seconds(self.timeline), "the run")
        full = Steps(() if self.diagnosis is None else self.diagnosis.step_seconds, "the doctor's full run")
        longer = run if len(run.seconds) >= len(full.seconds) else full
        return longer if longer.seconds else None


def step_seconds(found: Timeline) -> tuple[float, ...]:
    """From the end of each step to that of the next one, without those between which a validation, an epoch or a pause
    in the recording began."""
    ends, times = found.spans("step")[:, 1], found.samples.get("unix_seconds", np.zeros(0))
    pauses = times[:-1][np.diff(times) > PAUSE_SECONDS]
    breaks = np.concatenate([found.spans("validation")[:, 0], found.spans("epoch")[:, 0], pauses])
    broken = np.searchsorted(ends, breaks, side="right") - 1
    return tuple(np.delete(np.diff(ends), broken[(broken >= 0) & (broken < len(ends) - 1)]).tolist())


def leaves(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted name and value of all that is no mapping."""
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{name}.")
        else:
            yield name, value
