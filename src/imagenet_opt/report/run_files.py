"""What is known of a run when its report is written."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from omegaconf import OmegaConf

from imagenet_opt.doctor import diagnosis_file
from imagenet_opt.doctor.diagnosis import Diagnosis
from imagenet_opt.errors import ConfigError, ImagenetOptError
from imagenet_opt.measure.telemetry import timeline
from imagenet_opt.measure.telemetry.timeline import Timeline
from imagenet_opt.run.loggers import metrics_csv
from imagenet_opt.training.summary_file import SUMMARY, read_summary

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


CONFIG = Path(".hydra/config.yaml")
OVERRIDES = Path(".hydra/overrides.yaml")
_TIMELINE = "train.py records one, unless told '~callbacks.timeline'"


def read_record(place: Path) -> Record:
    """Of a run folder all that is there and whole; `absent` says what is not. Raises ConfigError for a doctor.json that
    cannot be read, or a folder without anything to report."""
    if place.is_file():
        return _record(
            place.absolute().parent.name or place.stem,
            place.parent,
            {"diagnosis": diagnosis_file.read_diagnosis(place)},
            place,
        )
    parts: dict[str, Any] = {}
    absent: dict[str, str] = {}
    for name, (file, read, remedy) in _READERS.items():
        if not (place / file).exists():
            absent[name] = f"no {file}: {remedy.format(run=place)}"
            continue
        try:
            parts[name] = read(place / file)
        except ImagenetOptError as error:
            absent[name] = str(error)
    if not parts:
        raise ConfigError(
            f"{place} holds nothing to report; expected a folder that train.py wrote, or a {diagnosis_file.FILE}"
        )
    absent["steps"] = "no steps were timed: both doctor.json and timeline/ would hold them"
    return _record(place.absolute().name, place, parts | {"absent": absent}, place / diagnosis_file.FILE)


def _record(name: str, folder: Path, parts: dict[str, Any], doctor: Path) -> Record:
    found = parts.get("diagnosis")
    absent = {"timeline": f"no {timeline.FOLDER}/: {_TIMELINE}"} | parts.get("absent", {})
    config = parts.get("config") or (found.config if found else {})
    files = {diagnosis_file.FILE: doctor, SUMMARY: folder / SUMMARY, str(CONFIG): folder / CONFIG}
    texts = {title: file.read_text(errors="replace") for title, file in files.items() if file.is_file()}
    return Record(
        name, **parts | {"absent": absent, "config": config, "texts": texts, "command": _command(found, folder)}
    )


def _command(found: Diagnosis | None, folder: Path) -> str:
    """As the doctor was called, else as the run was."""
    if found is not None and found.command:
        return found.command
    try:
        overrides = _yaml(folder / OVERRIDES)
    except ConfigError:
        return ""
    return " ".join(["python train.py", *map(str, overrides)])


def _yaml(file: Path) -> Any:
    """Plain containers. Raises ConfigError."""
    try:
        return OmegaConf.to_container(OmegaConf.load(file))
    except Exception as error:  # of the system, of OmegaConf, of YAML
        raise ConfigError(f"{file} cannot be read ({' '.join(str(error).split())})") from error


def _config(file: Path) -> dict[str, Any]:
    found = _yaml(file)
    if not isinstance(found, dict):
        raise ConfigError(f"{file} holds no configuration")
    return found


def _summary(file: Path) -> dict[str, float]:
    found = read_summary(file.parent)
    if not found:
        raise ConfigError(f"{file} is damaged")
    return found


_DOCTOR = "for a verdict run imagenet-opt doctor ... --json {run}/doctor.json"
_READERS: dict[str, tuple[str, Callable[[Path], Any], str]] = {
    "diagnosis": (diagnosis_file.FILE, diagnosis_file.read_diagnosis, _DOCTOR),
    "timeline": (timeline.FOLDER, timeline.read_timeline, _TIMELINE),
    "summary": (SUMMARY, _summary, "train.py writes it when a run ends"),
    "metrics": (metrics_csv.FILE, metrics_csv.read_rows, "train.py writes it with logger=csv or wandb"),
    "config": (str(CONFIG), _config, "train.py writes it"),
}
"""Field of a record -> file in the run folder, how to read it, what makes it."""
