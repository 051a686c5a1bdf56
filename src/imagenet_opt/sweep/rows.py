"""The jobs of a sweep, read from their folders."""

import logging
import math
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

from imagenet_opt.config.overrides import key_of, value_of
from imagenet_opt.run.numbers import IMAGES_PER_SECOND
from imagenet_opt.run.record import read_summary

log = logging.getLogger(__name__)

JOB = "job.json"
ACC1 = "val/acc1"
WORKERS, PREFETCH = "loader/num_workers", "loader/prefetch_factor"
FEW_STEPS = "too few steps for a speed"
_LEAST_STEPS = 20
"""The first ten steps are not timed."""


class SweepRow(BaseModel):
    """A job. overrides: as typed. summary: the numbers of record.json. The other fields are those of job.json."""

    job: int = Field(ge=0, lt=2**31)
    overrides: list[str]
    status: Literal["ok", "failed", "interrupted"]
    error: str | None
    seconds: float
    exit_code: int = Field(ge=-(2**31), lt=2**31)
    summary: dict[str, Any] = {}

    @property
    def parameters(self) -> dict[str, str]:
        """Values by name."""
        return {key_of(word): value_of(word) for word in self.overrides}


def collect_rows(sweep_dir: Path) -> list[SweepRow]:
    """Read all finished jobs from their folders, by job number. A damaged job.json is reported and left out."""
    rows: list[SweepRow] = []
    for file in sweep_dir.rglob(JOB):
        try:
            row = SweepRow.model_validate_json(file.read_bytes())
        except ValidationError as error:
            log.warning(f"{file} is damaged, so its job has no row: {error.errors()[0]['msg']}")
            continue
        rows.append(row.model_copy(update={"summary": read_summary(file.parent)}))
    return sorted(rows, key=lambda row: row.job)


def parameters(rows: list[SweepRow]) -> list[str]:
    """Names of the parameters of all jobs."""
    return list(dict.fromkeys(name for row in rows for name in row.parameters))


def varying(rows: list[SweepRow]) -> list[str]:
    """Names of the parameters whose value is not the same in all jobs."""
    return [name for name in parameters(rows) if len({row.parameters.get(name) for row in rows}) > 1]


def setting_of(row: SweepRow, names: list[str]) -> str:
    """The values of these parameters, in words."""
    return " ".join(f"{name}={row.parameters.get(name, '-')}" for name in names)


def speed(row: SweepRow) -> float:
    """Images per second; nan for a job that failed or measured no rate."""
    value = float(row.summary.get(IMAGES_PER_SECOND) or math.nan)
    return value if row.status == "ok" and 0 < value < math.inf else math.nan


def accuracy(row: SweepRow) -> float:
    """Top-1 accuracy of the last validation, from 0 to 1; nan for a job that failed or did not validate."""
    return float(row.summary.get(ACC1, math.nan)) if row.status == "ok" else math.nan


def needed_steps(row: SweepRow) -> int:
    """Number of steps after which the prefetched batches no longer determine the speed."""
    return _LEAST_STEPS + 2 * int(row.summary.get(WORKERS, 0) * row.summary.get(PREFETCH, 0))


def outcome(row: SweepRow) -> str:
    """The status, with a warning if the speed is not reliable."""
    steps = row.summary.get("steps", math.inf)
    return f"{row.status}, {FEW_STEPS}" if row.status == "ok" and steps < needed_steps(row) else row.status


def is_reliable(row: SweepRow) -> bool:
    """Whether the job succeeded and its speed is reliable."""
    return outcome(row) == "ok" and not math.isnan(speed(row))


def key_to_raise(row: SweepRow) -> str:
    """The key that ended a job with too few steps: its steps if it has made all of them, else its epochs."""
    typed = row.parameters.get("trainer.max_steps", "")
    return f"trainer.{'max_steps' if typed == str(row.summary.get('steps')) else 'max_epochs'}"
