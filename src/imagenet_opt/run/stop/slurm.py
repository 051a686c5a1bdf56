"""SLURM jobs: the name of their run folder, and requeueing."""

import logging
import os
import subprocess
from collections.abc import Mapping

log = logging.getLogger(__name__)

_INTERACTIVE = ("bash", "interactive")
_TIMEOUT_SECONDS = 60


def folder_name(environment: Mapping[str, str] = os.environ) -> str | None:
    """A name that a job keeps when it is requeued; None outside of SLURM and in interactive shells.

    slurm_<job>, slurm_<array>_<task> in an array; a second `srun` in the same job adds its number.
    """
    job = environment.get("SLURM_JOB_ID")
    if not job or environment.get("SLURM_JOB_NAME") in _INTERACTIVE:
        return None
    if array := environment.get("SLURM_ARRAY_JOB_ID"):
        job = f"{array}_{environment.get('SLURM_ARRAY_TASK_ID', '0')}"
    step = environment.get("SLURM_STEP_ID", "0")
    return f"slurm_{job}" if step == "0" else f"slurm_{job}_step{step}"


def requeue() -> bool:
    """Requeue this job, which also ends it. Returns whether SLURM accepted the request."""
    command = ["scontrol", "requeue", os.environ["SLURM_JOB_ID"]]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        log.warning(f"`{' '.join(command)}` failed ({error}); submit the job again yourself")
        return False
    if done.returncode:
        reason = done.stderr.strip() or f"status {done.returncode}"
        log.warning(f"`{' '.join(command)}` failed ({reason}); submit the job again yourself, next time with --requeue")
    return done.returncode == 0
