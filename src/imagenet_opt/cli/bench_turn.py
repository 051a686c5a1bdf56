"""One turn of the benchmark in a process of its own, so that nothing of one side reaches another."""

import json
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from imagenet_opt import errors
from imagenet_opt.cli.bench_job import CEILING, OWN, Job
from imagenet_opt.cli.bench_peers import PEERS
from imagenet_opt.errors import ImagenetOptError
from imagenet_opt.measure.interleave import TurnFailed
from imagenet_opt.measure.turn import Turn, take_turn

LIMIT_SECONDS = 1800
"""A turn that takes longer has hung."""
_ERROR = re.compile(r"(\w+\.)*(?P<error>\w*(Error|Exception|Interrupt)(:.*|$))")


def run_turn(job: Job) -> Turn:
    """Measure in a process of its own. Raises TurnFailed with the reason; for our own rows an ImagenetOptError."""
    return Turn(**_run(job, "turn"))


def write_packed(job: Job) -> None:
    """Write the files in the peer's own format to `job.packed`, whole or not at all, unless they are there.

    Raises TurnFailed.
    """
    if job.packed.is_dir():
        return
    try:
        job.packed.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=job.packed.parent, prefix="new_") as scratch:
            fresh = Path(scratch, "packed")
            fresh.mkdir()
            _run(job, "pack", str(fresh))
            os.replace(fresh, job.packed)
    except OSError as error:
        if job.packed.is_dir():  # another process was faster
            return
        raise TurnFailed(f"cannot write its copy of the files (data.cache_dir): {error}") from error


def _run(job: Job, *what: str) -> Any:
    """The answer of a process that does `what` with the job, and the end of all processes that it started."""
    with tempfile.TemporaryDirectory(prefix="imagenet_opt_bench_") as scratch:
        answer, log = Path(scratch, "answer.json"), Path(scratch, "log.txt")
        command = [sys.executable, "-P", "-m", __name__, str(answer), *what]
        environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE", "PYNVIMGCODEC_VERBOSITY": "0"}
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
            try:
                process.communicate(pickle.dumps(job), timeout=LIMIT_SECONDS)
            except subprocess.TimeoutExpired as error:
                raise TurnFailed(f"no end after {LIMIT_SECONDS} s") from error
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if not answer.exists():
            raise TurnFailed(_why(process.returncode, log.read_text(errors="replace")))
        given = json.loads(answer.read_text())
    if "error" in given and job.side in OWN:
        raise getattr(errors, given["error"])(given["message"])
    if "error" in given:
        raise TurnFailed(given["message"])
    return given


def _why(code: int, output: str) -> str:
    """The last error that the process printed, or how it ended."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    found = [named["error"] for line in lines if (named := _ERROR.match(line))]
    end = f"killed by signal {-code}" if code < 0 else f"ended with status {code}"
    return (found or [": ".join([end, *lines[-1:]])])[-1]


def main() -> None:
    """In the turn's own process: the job on stdin; the answer goes to the file that is named first."""
    answer, what, *folder = sys.argv[1:]
    job: Job = pickle.load(sys.stdin.buffer)
    threading.excepthook = _end_with  # a loader whose thread died may wait for it for ever
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    try:
        given = asdict(_turn(job)) if what == "turn" else _pack(job, Path(*folder))
    except (ImagenetOptError, TurnFailed) as error:
        given = {"error": type(error).__name__, "message": str(error)}
    written = Path(f"{answer}.new")
    written.write_text(json.dumps(given))
    written.rename(answer)
    sys.stdout.flush()
    os._exit(0)  # taking a loader down is no part of the turn, and some hang in it


def _end_with(died: threading.ExceptHookArgs) -> None:
    sys.excepthook(died.exc_type, died.exc_value or died.exc_type(), died.exc_traceback)
    os._exit(1)


def _end_with_parent(parent: int) -> None:
    """Without the one that asked, nobody would end a turn that hangs."""
    while os.getppid() == parent:
        time.sleep(1)
    os.killpg(0, signal.SIGKILL)


def _turn(job: Job) -> Turn:
    import torch

    from imagenet_opt.cli import bench_own

    torch.manual_seed(job.loading.seed)
    own: dict[str, Any] = dict.fromkeys(OWN, bench_own.Ours) | {CEILING: bench_own.ceiling}
    make = own[job.side] if job.side in own else PEERS[job.side].function()
    check = partial(check_peer_batch, job=job) if job.side in PEERS else lambda batch: None
    return take_turn(
        lambda: make(job),
        num_warmup=job.num_warmup,
        num_batches=job.num_batches,
        check=check,
        settle=torch.cuda.synchronize if job.device == "cuda" else lambda: None,
    )


def _pack(job: Job, folder: Path) -> dict[str, str]:
    PEERS[job.side].function("pack")(job, folder)
    return {}


def check_peer_batch(images: Any, job: Job) -> None:
    """Raises TurnFailed for anything but the uint8 images that were asked for: that would be no comparison."""
    count, size = job.loading.batch_size, job.loading.image_size
    shape, kind = tuple(images.shape), str(images.dtype).removeprefix("torch.")
    if kind != "uint8" or shape not in ((count, 3, size, size), (count, size, size, 3)):
        raise TurnFailed(f"gave {kind} {shape}, not uint8 images of {size} x {size} in batches of {count}")


if __name__ == "__main__":
    main()
