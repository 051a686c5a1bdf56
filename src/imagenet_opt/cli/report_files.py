"""What a run folder, or a doctor.json, holds for a report."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from imagenet_opt.errors import ConfigError, ImagenetOptError
from imagenet_opt.measure import diagnosis
from imagenet_opt.measure.report.record import Record
from imagenet_opt.measure.telemetry import timeline
from imagenet_opt.run import metrics_csv
from imagenet_opt.training.summary import SUMMARY, read_summary

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
            {"diagnosis": diagnosis.read_diagnosis(place)},
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
            f"{place} holds nothing to report; expected a folder that train.py wrote, or a {diagnosis.FILE}"
        )
    absent["steps"] = "no steps were timed: both doctor.json and timeline/ would hold them"
    return _record(place.absolute().name, place, parts | {"absent": absent}, place / diagnosis.FILE)


def _record(name: str, folder: Path, parts: dict[str, Any], doctor: Path) -> Record:
    found = parts.get("diagnosis")
    absent = {"timeline": f"no {timeline.FOLDER}/: {_TIMELINE}"} | parts.get("absent", {})
    config = parts.get("config") or (found.config if found else {})
    files = {diagnosis.FILE: doctor, SUMMARY: folder / SUMMARY, str(CONFIG): folder / CONFIG}
    texts = {title: file.read_text(errors="replace") for title, file in files.items() if file.is_file()}
    return Record(
        name, **parts | {"absent": absent, "config": config, "texts": texts, "command": _command(found, folder)}
    )


def _command(found: diagnosis.Diagnosis | None, folder: Path) -> str:
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


_READERS: dict[str, tuple[str, Callable[[Path], Any], str]] = {
    "diagnosis": (
        diagnosis.FILE, diagnosis.read_diagnosis, "imagenet-opt doctor ... --json {run}/doctor.json writes it"
    ),
    "timeline": (timeline.FOLDER, timeline.read_timeline, _TIMELINE),
    "summary": (SUMMARY, _summary, "train.py writes it when a run ends"),
    "metrics": (metrics_csv.FILE, metrics_csv.read_rows, "train.py writes it with logger=csv or wandb"),
    "config": (str(CONFIG), _config, "train.py writes it"),
}  # fmt: skip
"""Field of a record -> file in the run folder, how to read it, what makes it."""
