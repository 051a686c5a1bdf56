"""How a run ends that was asked to stop: a file in its folder, a line for the person, a status for the scheduler."""

import json
import os
import shlex
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from imagenet_opt.atomic_file import write_atomically
from imagenet_opt.errors import Preempted
from imagenet_opt.run.stop import slurm
from imagenet_opt.run.stop.signals import stop

FILE = "preempted.json"
SWEEP_JOB = "IMAGENET_OPT_SWEEP_JOB"
"""Environment variable of the jobs of a sweep."""
STATUS = 75
"""EX_TEMPFAIL of sysexits.h: the same command, later, succeeds."""


def record(folder: Path, *, global_step: int, newest: Path | None) -> Preempted:
    """Write `folder`/preempted.json, and return the error that says how to go on: from the `newest` checkpoint."""
    checkpoint = None if newest is None else str(newest.relative_to(folder))
    found = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "reason": stop.reason,
        "step": global_step,
        "checkpoint": checkpoint,
    }
    with suppress(OSError):  # a full disk must not change how the run ends
        write_atomically(folder / FILE, json.dumps(found, indent=2) + "\n")
    where = f"step {global_step}, checkpoint {newest}" if newest else "no step done, nothing to save"
    return Preempted(f"{stop.reason}: {where}; to resume:\n{command('hydra.run.dir', folder)}")


def clear(folder: Path) -> None:
    """The run goes on."""
    (folder / FILE).unlink(missing_ok=True)


def command(key: str, folder: Path) -> str:
    """What was typed, with the folder that it went to, whose newest checkpoint now counts.

    key: hydra.run.dir or hydra.sweep.dir.
    """
    arguments = [argument for argument in sys.argv[1:] if not argument.startswith("resume_from=")]
    if not any(argument.startswith(f"{key}=") for argument in arguments):
        arguments = [*arguments, f"{key}={os.path.relpath(folder)}"]
    return shlex.join(["python", sys.argv[0], *arguments])


def leave(error: Preempted, why: int | None = None) -> int:
    """Say why the run ends, have SLURM queue it again where its warning was the reason; the exit status.

    why: the number of the signal, if `stop` did not take it. A sweep's job leaves the queue to its sweep, which has
    yet to record it: to be queued again ends both.
    """
    text = str(error)
    if text == stop.reason:  # raised before there was a run
        text += ": training had not begun; the same command starts it"
    print(f"Preempted: {text}", file=sys.stderr, flush=True)
    asked = stop.why if why is None else why
    if asked == signal.SIGUSR1 and SWEEP_JOB not in os.environ and slurm.folder_name() is not None:
        slurm.requeue()
    return STATUS
