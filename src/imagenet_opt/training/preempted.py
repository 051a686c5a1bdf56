"""The end of a preempted run: a file in the run folder, a line for the user, an exit status for the scheduler."""

import json
import logging
import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from imagenet_opt.atomic_file import write_atomically
from imagenet_opt.config.overrides import insert, quoted, slurm_folder, typed, without
from imagenet_opt.errors import Preempted
from imagenet_opt.run.stop.signals import stop

log = logging.getLogger(__name__)

FILE = "preempted.json"
SWEEP_JOB = "IMAGENET_OPT_SWEEP_JOB"
"""Environment variable that a sweep sets for its jobs."""
_REQUEUE_SECONDS = 60
STATUS = 75
"""Exit status EX_TEMPFAIL of sysexits.h: the same command may succeed later."""


def record(folder: Path, *, global_step: int, newest: Path | None) -> Preempted:
    """Write `folder`/preempted.json, and return the error, whose message has the command that resumes the run.

    newest: the checkpoint to resume from; None for a run without a checkpoint.
    """
    facts = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "reason": stop.reason,
        "step": global_step,
        "checkpoint": None if newest is None else str(newest.relative_to(folder)),
    }
    with suppress(OSError):  # a full disk must not change how the run ends
        write_atomically(folder / FILE, json.dumps(facts, indent=2) + "\n")
    where = f"step {global_step}, checkpoint {newest}" if newest else "no step done, nothing to save"
    resume = command("hydra.run.dir", folder, resumes=newest is not None)
    return Preempted(f"{stop.reason}: {where}; to resume:\n{resume}")


def clear(folder: Path) -> None:
    """Remove `folder`/preempted.json when the run resumes."""
    (folder / FILE).unlink(missing_ok=True)


def command(key: str, folder: Path, *, resumes: bool = True) -> str:
    """The command that resumes the run: the command line as typed, with `key` and the absolute folder, and without
    `resume_from`. Several processes of torchrun: `...` stands for the options of torchrun.

    key: hydra.run.dir or hydra.sweep.dir. resumes: whether there is a checkpoint; else `resume_from` stays, so that the
    run begins again where it began.
    """
    script, *words = typed or sys.argv
    python = ["torchrun", "..."] if "TORCHELASTIC_RUN_ID" in os.environ else ["python"]
    program = [*python, os.path.abspath(script)] if script.endswith(".py") else [os.path.basename(script)]
    kept = without(words, key, "resume_from") if resumes else without(words, key)
    return shlex.join([*program, *insert(kept, f"{key}={quoted(folder.absolute())}")])


def leave(error: Preempted, why: int | None = None) -> int:
    """Print why the run ends, requeue the SLURM job after a SIGUSR1, and return the exit status.

    why: the number of the signal, if `stop` did not handle the signal. A job of a sweep does not requeue: a requeue
    would end the sweep before the sweep has recorded the job.
    """
    text = str(error)
    if text == stop.reason:  # raised before the run was built
        text += ": training had not started; the same command starts it"
    print(f"Preempted: {text}", file=sys.stderr, flush=True)
    number = stop.why if why is None else why
    if number == signal.SIGUSR1 and SWEEP_JOB not in os.environ and slurm_folder() is not None:
        requeue()
    return STATUS


def requeue() -> bool:
    """Requeue this SLURM job, which also ends it. Returns whether SLURM accepted the request."""
    command = ["scontrol", "requeue", os.environ["SLURM_JOB_ID"]]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_REQUEUE_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        reason = (getattr(error, "stderr", None) or str(error)).strip()
        log.warning(f"`{' '.join(command)}` failed ({reason}); submit the job again yourself, next time with --requeue")
        return False
    return True
