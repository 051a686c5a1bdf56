"""Runs each job of a multirun in a process of its own; writes sweep.csv and sweep.html and prints the final table."""

import json
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, Popen, TimeoutExpired
from threading import Thread
from types import FrameType
from typing import Any, ClassVar, NoReturn

from hydra.conf import HydraConf
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, flag_override

from imagenet_opt.atomic_file import write_atomically
from imagenet_opt.config.overrides import key_of, quoted
from imagenet_opt.errors import ConfigError, Preempted, did_you_mean, last_error_line
from imagenet_opt.run.numbers import IMAGES_PER_SECOND, mode_of
from imagenet_opt.run.record import RECORD, SUMMARY
from imagenet_opt.run.stop.signals import stop
from imagenet_opt.sweep.plugins import RAY, check_installed, connect, end_of_multirun
from imagenet_opt.sweep.results import print_results, write_csv, write_page
from imagenet_opt.sweep.rows import ACC1, JOB, SweepRow, collect_rows
from imagenet_opt.sweep.settings import measure_of
from imagenet_opt.training.preempted import STATUS, SWEEP_JOB, command, leave

log = logging.getLogger(__name__)

OBJECTIVE = "hydra.callbacks.sweep_table.objective"
_SWEEP_ONLY = (OBJECTIVE, "hydra.sweep", "hydra.run", "hydra.mode", "hydra.launcher", "hydra/launcher", "hydra/sweeper")
_STOP_SECONDS = 180
_TAIL = 8192


class ForwardedSignals:
    """Handles SIGTERM and SIGUSR1 from the first job to the end of the process, also between two jobs.

    why: number of the first received signal; 0 for none.
    """

    def __init__(self) -> None:
        self.why = 0
        self._job: Popen[bytes] | None = None

    def install(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGUSR1):
                signal.signal(number, self._receive)

    @contextmanager
    def to(self, job: Popen[bytes]) -> Iterator[None]:
        """Forward signals to `job` while it runs, including those received since the job was started."""
        self._job = job
        if self.why:
            job.send_signal(self.why)
        try:
            yield
        finally:
            self._job = None

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.why = self.why or number
        if self._job is not None:
            self._job.send_signal(number)


handover = ForwardedSignals()


class SweepTable(Callback):
    """Hydra callback that chooses what a search optimizes, and prints the table of all jobs when a multirun ends.

    objective: number of record.json; None to choose by the keys that the search varies.
    """

    folder: ClassVar[Path | None] = None
    """Folder of the multirun that this process started."""

    def __init__(self, objective: str | None = None) -> None:
        self.objective = objective

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        try:
            check_installed(config.hydra)
            SweepTable.folder = Path(config.hydra.runtime.cwd) / config.hydra.sweep.dir
            if not config.hydra.sweeper._target_.endswith(".BasicSweeper"):
                logging.getLogger("alembic").setLevel(logging.WARNING)  # Optuna's database prints each of its parts
                self._say_objective(config.hydra)
            if _has_queue(config.hydra):
                _leave_to_queue(config.hydra, SweepTable.folder)
        except ConfigError as error:  # Hydra would turn it into a warning
            sys.exit(error)  # type: ignore[arg-type]  # cli/mistakes.py reports it

    def _say_objective(self, hydra: DictConfig) -> None:
        """Choose the objective of a search for all its jobs and its direction, unless the user has, and print them."""
        with flag_override(hydra, ["readonly", "struct"], False):
            if (objective := self.objective) is None:
                parsed = OverridesParser.create().parse_overrides(list(hydra.overrides.task))
                searched = [word.key_or_group for word in parsed if word.is_sweep_override()]
                objective = measure_of([*searched, *(hydra.sweeper.get("params") or {})]).key
                hydra.overrides.hydra.append(f"++{OBJECTIVE}={objective}")  # jobs are composed with these
            if (direction := hydra.sweeper.get("direction", "optimize")) is None:
                hydra.sweeper.direction = direction = f"{mode_of(objective)}imize"
        verb = getattr(direction, "name", direction)
        log.info(f"the search {verb}s {objective}; {OBJECTIVE}=KEY chooses another number of record.json")

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        sweep_dir = Path(config.hydra.runtime.cwd) / config.hydra.sweep.dir
        print_results(_write_tables(sweep_dir), sweep_dir)


def _has_queue(hydra: HydraConf) -> bool:
    """Whether a launcher runs the jobs in other processes, perhaps on other machines."""
    return not hydra.launcher._target_.endswith(".BasicLauncher")


def _leave_to_queue(hydra: HydraConf, sweep_dir: Path) -> None:
    """Restore the usual signal handling, because this process only waits. Connect to Ray, if it runs the jobs."""
    stop.restore()
    resume = command("hydra.sweep.dir", sweep_dir)
    if hydra.launcher._target_ == RAY:
        connect(hydra.launcher, hydra.sweep.dir)
        log.info(f"Ray runs the jobs, one on each host; they end with this command, and `{resume}` resumes them")
        return
    os.environ["SUBMITIT_PREEMPT_SIGNAL"] = "USR1"  # jobs save on SIGUSR1, not on the default signal of submitit
    log.info(
        f"submitit runs the jobs; they continue if this command ends first, and `{resume}` collects their results later"
    )


def ended_early(error: Exception) -> str | None:
    """Print the table after an error by which a launcher or sweeper of another package ended the multirun.

    Returns the reason and the command that resumes the sweep; None for any other error.
    """
    reason = end_of_multirun(error)
    if reason is None or SweepTable.folder is None:
        return None
    print_results(_write_tables(SweepTable.folder), SweepTable.folder)
    return f"{reason}; `{command('hydra.sweep.dir', SweepTable.folder)}` resumes the sweep"


def run_job(script: Path) -> float | None:
    """Run the current job of a multirun as `python script OVERRIDES`, and record its result; a failure is a row too.

    Returns the search's objective, for sweepers that search; None if the job failed or did not measure it (Optuna's
    sweeper ends the search at a nan). A job that succeeded before in the same sweep folder is not run again. After a
    signal to stop or Ctrl-C, records all jobs so far, prints the command that resumes, and raises SystemExit or
    KeyboardInterrupt.
    """
    handover.install()
    hydra = HydraConfig.get()
    sweep_dir = Path(hydra.runtime.cwd) / hydra.sweep.dir
    folder = Path(hydra.runtime.output_dir)
    overrides = list(hydra.overrides.task)
    if _is_done(folder, overrides):
        log.info(f"#{hydra.job.num} succeeded before")
        return _record(sweep_dir, hydra.job.num)
    if handover.why:
        print_results(collect_rows(sweep_dir), sweep_dir)
        _leave(f"the sweep ends before job #{hydra.job.num}", sweep_dir)
    for stale in (JOB, RECORD, SUMMARY):
        (folder / stale).unlink(missing_ok=True)
    environment = os.environ | {"IMAGENET_OPT_SWEEP": sweep_dir.name, SWEEP_JOB: "1", "PYTHONUNBUFFERED": "1"}
    if "SLURM_JOB_ID" in os.environ:
        environment["SLURM_JOB_NAME"] = "interactive"  # Lightning starts its processes itself, not SLURM's tasks
    outcome = _run(_command(script, hydra), folder / "job.log", cwd=hydra.runtime.cwd, env=environment)
    job = {"job": hydra.job.num, "overrides": overrides} | outcome
    write_atomically(folder / JOB, json.dumps(job, indent=2) + "\n")
    return _record(sweep_dir, hydra.job.num)


def _write_tables(sweep_dir: Path) -> list[SweepRow]:
    rows = collect_rows(sweep_dir)
    write_csv(rows, sweep_dir)
    write_page(rows, sweep_dir)
    return rows


def _record(sweep_dir: Path, num: int) -> float | None:
    rows = _write_tables(sweep_dir)
    row = next(row for row in rows if row.job == num)
    log.info(f"#{num} {row.status} after {row.seconds:.0f} s{': ' + row.error if row.error else ''}")
    if row.status == "interrupted":
        print_results(rows, sweep_dir)
        if row.exit_code == STATUS or handover.why:
            _leave(f"the sweep stopped in job #{num}", sweep_dir)
        log.warning(_left(f"the sweep stopped in job #{num}", sweep_dir))
        raise KeyboardInterrupt
    objective = HydraConfig.get().callbacks["sweep_table"].get("objective") or IMAGES_PER_SECOND
    value = float(row.summary.get(objective, math.nan)) if row.status == "ok" else math.nan
    if math.isfinite(value):
        return value
    if row.status == "ok":
        if objective not in (*row.summary, IMAGES_PER_SECOND, ACC1):
            known = did_you_mean(objective, row.summary, f"expected one of {', '.join(row.summary)}")
            sys.exit(ConfigError(f"{OBJECTIVE}={objective} is no number of {RECORD}; {known}"))  # type: ignore[arg-type]
        log.info(f"#{num} measured no {objective}")
    return None


def _is_done(folder: Path, overrides: list[str]) -> bool:
    """Whether a job with these overrides succeeded in `folder`."""
    with suppress(OSError, ValueError):
        job = json.loads((folder / JOB).read_text())
        return bool(job["status"] == "ok" and job["overrides"] == overrides)
    return False


def _leave(reason: str, sweep_dir: Path) -> NoReturn:
    """End the sweep with SystemExit, because Hydra would hold another exception back until all jobs are done."""
    sys.exit(leave(Preempted(_left(reason, sweep_dir)), handover.why))


def _left(reason: str, sweep_dir: Path) -> str:
    """`reason`, with the command that resumes the sweep, which a job on a cluster does not know."""
    if _has_queue(HydraConfig.get()):
        return reason
    return f"{reason}; `{command('hydra.sweep.dir', sweep_dir)}` resumes the sweep"


def _command(script: Path, hydra: HydraConf) -> list[str]:
    """Command line of the job: the user's overrides, and Hydra's options except those of the whole sweep."""
    flags = {"main": "--config-path", "command-line": "--config-dir"}
    sources = [source for source in hydra.runtime.config_sources if source.provider in flags]
    config = [
        *(f"{flags[source.provider]}={source.path}" for source in sources),
        f"--config-name={hydra.job.config_name}",
    ]
    of_hydra = [text for text in hydra.overrides.hydra if not key_of(text).startswith(_SWEEP_ONLY)]
    mode = ["hydra.mode=RUN", f"hydra.run.dir={quoted(hydra.runtime.output_dir)}"]
    return [str(script), *config, *hydra.overrides.task, *of_hydra, *mode]


def _run(command: list[str], job_log: Path, *, cwd: str, env: dict[str, str]) -> dict[str, Any]:
    """Run the job to its end, with its output on the terminal and in `job_log`. Returns the fields of job.json."""
    began = time.perf_counter()
    process = Popen([sys.executable, *command], cwd=cwd, env=env, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT)
    reader = Thread(target=_tee, args=(process.stdout, job_log), daemon=True)
    reader.start()
    interrupted = False
    try:
        with handover.to(process):
            process.wait()
    except KeyboardInterrupt:
        interrupted = True
        _stop(process)
    reader.join(timeout=5)  # a process that the job left behind may hold the pipe open
    code = process.wait()
    killed = handover.why and code in (-signal.SIGTERM, -signal.SIGUSR1)  # before the job installed its handlers
    stopped = interrupted or killed or code == STATUS
    status = "interrupted" if stopped else "failed" if code else "ok"
    error = _explain(code, job_log.read_text(errors="replace")[-_TAIL:]) if status == "failed" else None
    return {"status": status, "error": error, "seconds": time.perf_counter() - began, "exit_code": code}


def _tee(source: Any, job_log: Path) -> None:
    with source, job_log.open("wb", buffering=0) as file:
        while chunk := source.read1(65536):
            file.write(chunk)
            sys.stdout.buffer.write(chunk)
            sys.stdout.flush()


def _stop(process: Popen[bytes]) -> None:
    """Let the job, which also received Ctrl-C, end by itself; kill it after three minutes or a second Ctrl-C."""
    try:
        log.warning(f"stopping the job, up to {_STOP_SECONDS} s; Ctrl-C again kills it")
        process.wait(_STOP_SECONDS)
    except (KeyboardInterrupt, TimeoutExpired):
        process.kill()
        process.wait()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # more Ctrl-C must not stop the writing of the rows


def _explain(code: int, output: str) -> str:
    """The last error, without what W&B and Python print while they exit; or the signal that ended the job."""
    if code < 0:
        reason = "out of memory?" if -code == signal.SIGKILL else signal.strsignal(-code)
        return f"killed by signal {-code} ({reason})"
    return last_error_line(output) or f"exit status {code}, see job.log"
