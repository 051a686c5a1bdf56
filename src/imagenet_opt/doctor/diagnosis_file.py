"""doctor.json: the diagnosis for other programs and for the report."""

import json
import types
import typing
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any

from imagenet_opt.doctor.diagnosis import VERDICTS, Diagnosis
from imagenet_opt.doctor.evidence import Evidence
from imagenet_opt.errors import ConfigError

FILE = "doctor.json"
FORMAT = 4


def write_diagnosis(diagnosis: Diagnosis, file: Path) -> None:
    """Write a diagnosis as JSON, with its sentence as "verdict". Raises OSError."""
    plain = asdict(diagnosis)
    meaning = VERDICTS[diagnosis.cause].rpartition(": ")[2]
    verdict = {"verdict": plain.pop("sentence"), "cause": diagnosis.cause, "meaning": meaning}
    shares = {"efficiency": diagnosis.efficiency, "unexplained": diagnosis.unexplained}
    about = {"format": FORMAT, **verdict, **shares, "confidence": diagnosis.confidence._asdict()}
    measurements = plain.pop("measurements")
    for name, ceiling in diagnosis.measurements.ceilings.items():
        rates = {"images_per_second": ceiling.images_per_second} | ceiling.estimate._asdict()
        measurements["ceilings"][name] = rates | measurements["ceilings"][name]
    file.write_text(json.dumps(about | plain | measurements, indent=1) + "\n")


def read_diagnosis(file: Path) -> Diagnosis:
    """Read a diagnosis. Raises ConfigError if the file is missing or is not a doctor.json."""
    try:
        plain = json.loads(file.read_text())
        if plain["format"] != FORMAT:
            raise ConfigError(f"{file} has format {plain['format']}, expected {FORMAT}; run imagenet-opt doctor again")
        return diagnosis_of(plain)
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}; imagenet-opt doctor writes it") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else error
        raise ConfigError(f"{file} is not a file of imagenet-opt doctor ({reason})") from error


def diagnosis_of(plain: Mapping[str, Any]) -> Diagnosis:
    """The diagnosis in the content of a doctor.json. Raises ValueError, KeyError, TypeError, AttributeError for other
    content."""
    diagnosis: Diagnosis = _typed(Diagnosis, {**plain, "sentence": plain["verdict"], "measurements": plain})
    return diagnosis


def evidence_of(plain: Mapping[str, Any]) -> Evidence:
    """The measurements in the content of a doctor.json. Raises as `diagnosis_of`."""
    evidence: Evidence = _typed(Evidence, plain)
    return evidence


def _typed(kind: Any, plain: Any) -> Any:
    """A value of JSON as this type: a dataclass, a NamedTuple, a tuple, a mapping, or any of them or None."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        return None if plain is None else _typed(inner[0], plain)
    if is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return kind(
            **{
                field.name: _typed(hints[field.name], plain[field.name])
                for field in fields(kind)
                if field.name in plain
            }
        )  # type: ignore[operator]
    if isinstance(kind, type) and issubclass(kind, tuple):
        hints = typing.get_type_hints(kind)
        return kind(*(_typed(hint, value) for hint, value in zip(hints.values(), plain, strict=True)))
    if origin is tuple and inner[1:] == (...,):
        return tuple(_typed(inner[0], value) for value in plain)
    if origin is tuple:
        return tuple(_typed(hint, value) for hint, value in zip(inner, plain, strict=True))
    if origin is not None and issubclass(origin, Mapping):
        return {key: _typed(inner[1], value) for key, value in plain.items()}
    return plain
