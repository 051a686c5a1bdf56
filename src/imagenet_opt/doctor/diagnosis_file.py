"""doctor.json: the diagnosis for other programs and for the report."""

import json
from dataclasses import asdict
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from imagenet_opt.doctor.diagnosis import Diagnosis
from imagenet_opt.errors import ConfigError

FILE = "doctor.json"
FORMAT = 5
_DIAGNOSIS = TypeAdapter(Diagnosis)


def as_json(diagnosis: Diagnosis) -> str:
    """A diagnosis as JSON, with its sentence as "verdict"."""
    plain = asdict(diagnosis)
    measurements = plain.pop("measurements")
    for name, ceiling in diagnosis.measurements.ceilings.items():
        rates = {"images_per_second": ceiling.images_per_second} | ceiling.estimate._asdict()
        measurements["ceilings"][name] = rates | measurements["ceilings"][name]
    shares = {"efficiency": diagnosis.efficiency, "unexplained": diagnosis.unexplained}
    about = {"format": FORMAT, "verdict": plain.pop("sentence"), **shares, "confidence": diagnosis.confidence._asdict()}
    return json.dumps(about | plain | measurements, indent=1) + "\n"


def read_diagnosis(file: Path) -> Diagnosis:
    """Read a diagnosis. Raises ConfigError if the file is missing or is not a doctor.json."""
    try:
        plain = json.loads(file.read_text())
        if plain["format"] != FORMAT:
            raise ConfigError(f"{file} has format {plain['format']}, expected {FORMAT}; run imagenet-opt doctor again")
        return _DIAGNOSIS.validate_python({**plain, "sentence": plain["verdict"], "measurements": plain})
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}; imagenet-opt doctor writes it") from error
    except (ValueError, KeyError, TypeError) as error:
        reason = str(error)
        if isinstance(error, ValidationError):
            reason = ": ".join(map(str, (*error.errors()[0]["loc"], error.errors()[0]["msg"])))
        raise ConfigError(f"{file} is not a file of imagenet-opt doctor ({reason})") from error
