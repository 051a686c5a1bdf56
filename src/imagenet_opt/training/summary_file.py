"""summary.json: the numbers of a run, by metric name. Imports neither torch nor Lightning, since sweeps read it."""

import json
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from imagenet_opt.atomic_file import write_atomically

SUMMARY = "summary.json"
IMAGES_PER_SECOND = "throughput/images_per_second"
_NUMBERS = TypeAdapter(dict[str, Annotated[int, Field(ge=-(2**63), lt=2**63)] | float])


def write_summary(numbers: dict[str, float], run_folder: Path) -> None:
    write_atomically(run_folder / SUMMARY, json.dumps(numbers, indent=2) + "\n")


def read_summary(folder: Path) -> dict[str, float]:
    """The numbers of a run; empty if the run wrote no whole summary."""
    try:
        return _NUMBERS.validate_json((folder / SUMMARY).read_bytes())
    except (FileNotFoundError, ValidationError):
        return {}
