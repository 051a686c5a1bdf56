"""Reads the files of a run for its report."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml  # type: ignore[import-untyped]
from omegaconf import OmegaConf

from imagenet_opt.config.trust import entries
from imagenet_opt.doctor import diagnosis_file
from imagenet_opt.doctor.diagnosis import Diagnosis
from imagenet_opt.errors import ConfigError, ImagenetOptError
from imagenet_opt.measure.telemetry import timeline
from imagenet_opt.measure.telemetry.timeline import Timeline
from imagenet_opt.run.numbers import METRICS, read_rows
from imagenet_opt.run.record import RECORD, SUMMARY, read_summary

PAUSE_SECONDS = 2.0
"""A gap this long between samples means that the run or the machine was interrupted."""


@dataclass(frozen=True)
class Record:
    """The files of a run that exist and can be read.

    summary: the numbers of record.json. metrics: the rows of metrics.csv with their steps. config: plain containers.
    absent: name of a missing field -> sentence that says how to create it. command: that measured or trained.
    """

    name: str
    diagnosis: Diagnosis | None = None
    timeline: Timeline | None = None
    summary: Mapping[str, float] = field(default_factory=dict)
    metrics: Sequence[tuple[int, Mapping[str, float]]] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)
    command: str = ""

    @property
    def simulated(self) -> str | None:
        """Name of the accelerator that the doctor or the run simulated; None for a real device."""
        if self.diagnosis and self.diagnosis.measurements.simulated:
            return self.diagnosis.measurements.simulated
        name = dict(entries(self.config)).get("callbacks.rehearsal.name")
        return None if name is None else str(name)

    @property
    def steps(self) -> tuple[tuple[float, ...], str]:
        """Step times in seconds, and the run that they belong to: the longer series of the run's timeline and of the
        doctor's full run."""
        of_run = () if self.timeline is None else step_seconds(self.timeline)
        of_doctor = () if self.diagnosis is None else self.diagnosis.measurements.step_seconds
        return max((of_run, "the run"), (of_doctor, "the doctor's full run"), key=lambda steps: len(steps[0]))


def step_seconds(recording: Timeline) -> tuple[float, ...]:
    """Seconds from the end of each step to the end of the next step.

    Intervals in which a validation, an epoch or a pause of the recording started are left out.
    """
    ends, times = recording.spans("step")[:, 1], recording.samples.get("unix_seconds", np.zeros(0))
    pauses = times[:-1][np.diff(times) > PAUSE_SECONDS]
    breaks = np.concatenate([recording.spans("validation")[:, 0], recording.spans("epoch")[:, 0], pauses])
    broken = np.searchsorted(ends, breaks, side="right") - 1
    return tuple(np.delete(np.diff(ends), broken[(broken >= 0) & (broken < len(ends) - 1)]).tolist())


CONFIG = Path(".hydra/config.yaml")
OVERRIDES = Path(".hydra/overrides.yaml")


def read_run(place: Path) -> Record:
    """Read a run folder or a doctor.json; `absent` of the record lists missing and damaged files.

    Raises ConfigError for a doctor.json that cannot be read, or a folder without any file to report.
    """
    parts: dict[str, Any] = {}
    absent: dict[str, str] = {}
    folder = place.parent if place.is_file() else place
    for name, (file, read, remedy) in _READERS.items():
        is_there = (place / file).exists() or (file == RECORD and (place / SUMMARY).exists())
        if place.is_file() or not is_there:
            absent[name] = f"no {file}: {remedy.format(doctor=_doctor(folder))}"
            continue
        try:
            parts[name] = read(place / file)
        except ImagenetOptError as error:
            absent[name] = str(error)
    if place.is_file():
        parts["diagnosis"] = diagnosis_file.read_diagnosis(place)
        del absent["diagnosis"]
    if not parts:
        raise ConfigError(
            f"{place} holds nothing to report; expected a folder that train.py wrote, or a {diagnosis_file.FILE}"
        )
    diagnosis, overrides = parts.get("diagnosis"), _overrides(folder)
    command = "" if overrides is None else shlex.join(["python", "train.py", *overrides])
    if diagnosis is not None:
        command = diagnosis.measurements.command or command
        parts.setdefault("config", diagnosis.measurements.config)
    return Record(folder.absolute().name or place.stem, **parts, absent=absent, command=command)


def _doctor(folder: Path) -> str:
    """The command that examines a run; without a list of its overrides, `...` stands for them."""
    overrides = [word for word in _overrides(folder) or () if not word.startswith(("hydra.", "hydra/", "resume_from="))]
    file = shlex.quote(str(folder.absolute() / diagnosis_file.FILE))
    return f"imagenet-opt doctor {shlex.join(overrides) or '...'} --json {file}"


def _overrides(folder: Path) -> list[str] | None:
    """The overrides of a run; None if they are unknown."""
    try:
        return list(map(str, _yaml(folder / OVERRIDES, list)))
    except ConfigError:
        return None


def _yaml(file: Path, kind: type) -> Any:
    """Read a YAML file as plain containers, of which the outermost is of this kind. Raises ConfigError."""
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(file.read_text())):
            raise ValueError("it has aliases, which no run writes, and a few of them can stand for gigabytes")
        content = OmegaConf.to_container(OmegaConf.load(file))
        if not isinstance(content, kind):
            raise ValueError(f"it holds no {kind.__name__}")
        return content
    except Exception as error:  # OSError, or errors of OmegaConf and YAML
        raise ConfigError(f"{file} cannot be read ({' '.join(str(error).split())})") from error


def _summary(file: Path) -> dict[str, float]:
    if numbers := read_summary(file.parent):
        return numbers
    raise ConfigError(f"{file} is damaged")


_READERS: dict[str, tuple[str, Callable[[Path], Any], str]] = {
    "diagnosis": (diagnosis_file.FILE, diagnosis_file.read_diagnosis, "to get a verdict, run {doctor}"),
    "timeline": (
        timeline.FOLDER, timeline.read_timeline,
        "train.py records a timeline unless it is switched off with '~callbacks.timeline'",
    ),
    "summary": (RECORD, _summary, "train.py writes it when a run ends"),
    "metrics": (METRICS, read_rows, "train.py writes it with logger=csv or wandb"),
    "config": (str(CONFIG), lambda file: _yaml(file, dict), "train.py writes it"),
}  # fmt: skip
"""Field of a record -> file in the run folder, function that reads it, text that says how to create it."""
