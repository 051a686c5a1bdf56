"""doctor.json: the diagnosis for other programs and for the report."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from imagenet_opt.doctor.confidence import confidence
from imagenet_opt.doctor.diagnosis import Diagnosis, Finding, Measurements, Step
from imagenet_opt.doctor.facts import Facts
from imagenet_opt.doctor.verdict import CAUSES
from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.stats.rate import Ceiling
from imagenet_opt.probe.growing_images import SizePhase

FILE = "doctor.json"
FORMAT = 3


def write_diagnosis(diagnosis: Diagnosis, file: Path) -> None:
    """Write a diagnosis as JSON, with its sentence as "verdict". Raises OSError."""
    plain = asdict(diagnosis)
    verdict = {"verdict": plain.pop("sentence"), "cause": diagnosis.cause, "meaning": CAUSES[diagnosis.cause].meaning}
    shares = {"efficiency": diagnosis.efficiency, "unexplained": diagnosis.unexplained}
    about = {"format": FORMAT, **verdict, **shares, "confidence": confidence(diagnosis)._asdict()}
    measurements = plain.pop("measurements")
    measurements["ceilings"] = {
        name: {"images_per_second": ceiling.images_per_second} | ceiling.estimate._asdict() | asdict(ceiling)
        for name, ceiling in diagnosis.measurements.ceilings.items()
    }
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
    read: dict[str, Callable[[Any], Any]] = {
        "ceilings": lambda ceilings: {
            name: Ceiling(tuple(rates["windows"]), rates["facts"], rates["in_bursts"])
            for name, rates in ceilings.items()
        },
        "waterfall": lambda steps: tuple(Step(**step) for step in steps),
        "findings": lambda findings: tuple(
            Finding(**finding | {name: tuple(finding[name]) for name in ("overrides", "commands")})
            for finding in findings
        ),
        "facts": lambda facts: Facts(**facts),
        "step_seconds": tuple,
        "growing": lambda phases: tuple(SizePhase(*phase) for phase in phases),
        "curves": lambda curves: {name: tuple((x, y) for x, y in points) for name, points in curves.items()},
    }

    def fields_of(kind: type[Measurements] | type[Diagnosis]) -> dict[str, Any]:
        names = kind.__dataclass_fields__.keys() & plain.keys()
        return {name: read.get(name, lambda value: value)(plain[name]) for name in names}

    return Diagnosis(
        sentence=plain["verdict"], measurements=Measurements(**fields_of(Measurements)), **fields_of(Diagnosis)
    )
