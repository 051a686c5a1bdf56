"""The jobs of a sweep, read from their folders."""

import logging
import math
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

from imagenet_opt.config.overrides import key_of, value_of
from imagenet_opt.run.numbers import IMAGES_PER_SECOND, read_summary

log = logging.getLogger(__name__)

JOB = "job.json"
WORKERS, PREFETCH = "loader/num_workers", "loader/prefetch_factor"
FEW_STEPS = "too few steps to trust"
_LEAST_STEPS = 20
"""The first ten steps are not timed."""


class Row(BaseModel):
    """A job. overrides: as typed. summary: content of summary.json. The other fields are those of job.json."""

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


def collect_rows(sweep_dir: Path) -> list[Row]:
    """Read all finished jobs from their folders, by job number. A damaged job.json is reported and left out."""
    rows: list[Row] = []
    for file in sweep_dir.rglob(JOB):
        try:
            row = Row.model_validate_json(file.read_bytes())
        except ValidationError as error:
            log.warning(f"{file} is damaged, so its job has no row: {error.errors()[0]['msg']}")
            continue
        rows.append(row.model_copy(update={"summary": read_summary(file.parent)}))
    return sorted(rows, key=lambda row: row.job)


def parameters(rows: list[Row]) -> list[str]:
    """Names of the parameters of all jobs."""
    return list(dict.fromkeys(name for row in rows for name in row.parameters))


def varying(rows: list[Row]) -> list[str]:
    """Names of the parameters whose value is not the same in all jobs."""
    return [name for name in parameters(rows) if len({row.parameters.get(name) for row in rows}) > 1]


def speed(row: Row) -> float:
    """Images per second; nan for a job that failed or measured no rate."""
    value = float(row.summary.get(IMAGES_PER_SECOND) or math.nan)
    return value if row.status == "ok" and 0 < value < math.inf else math.nan


def needed_steps(row: Row) -> int:
    """Number of steps after which the prefetched batches no longer determine the speed."""
    return _LEAST_STEPS + 2 * int(row.summary.get(WORKERS, 0) * row.summary.get(PREFETCH, 0))


def outcome(row: Row) -> str:
    """The status, with a warning if the speed is not reliable."""
    steps = row.summary.get("steps", math.inf)
    return f"{row.status}, {FEW_STEPS}" if row.status == "ok" and steps < needed_steps(row) else row.status


def best(rows: list[Row]) -> Row | None:
    """The job with the most images per second. Jobs with too few steps count only if all jobs have too few."""
    timed = [row for row in rows if not math.isnan(speed(row))]
    return max([row for row in timed if outcome(row) == "ok"] or timed, key=speed, default=None)
