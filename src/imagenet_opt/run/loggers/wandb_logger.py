"""Weights & Biases: online when there is a key, else offline; the same run over any number of restarts."""

import logging
import os
import re
import threading
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.loggers import WandbLogger

from imagenet_opt.errors import ConfigError, first_line
from imagenet_opt.run.loggers.metrics_csv import FILE, read_rows

log = logging.getLogger(__name__)

_INIT_SECONDS = 30
_FINISH_SECONDS = 120
_PREEMPTED_SECONDS = 20
"""For the same in a run that must leave its machine."""
ID_FILE = "wandb_id.txt"
"""In the run folder: the run's id."""
STEP_FILE = "wandb_step.txt"
"""In the run folder: the last step that was handed over to W&B."""
_RUN_ID = re.compile(r"[0-9A-Za-z_-]{1,64}")
REPORT_KEY = "report"
"""Of the report's panel in W&B."""
STEP = "trainer/global_step"  # Lightning's name
# Whole names: which of two patterns wins, such as * and val/*, W&B leaves open.
BY_EPOCH = ("val/loss", "val/acc1", "val/acc5", "throughput/epoch_seconds")


class WandbRunLogger(WandbLogger):
    """Lightning's W&B logger, whose rows are numbered by the training step, which W&B's own step is too.

    logged_until: the last step that W&B has already; rows up to it are left out. None when that is not known.
    A row is handed over when the next one begins, since validation adds to the row of its step; a run that fails keeps
    its last row back, and a resumed one completes it from metrics.csv in `folder` or logs it again.
    When W&B fails, that is said once, and training continues without it.
    """

    def __init__(self, *, folder: str, logged_until: int | None, experiment: Any, **options: Any) -> None:
        super().__init__(save_dir=folder, experiment=experiment, **options)
        self._folder = Path(folder)
        self.logged_until = logged_until
        self._step, self._row = -1, dict[str, float]()
        self._works = True

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        step = self._step if step is None else step
        if self.logged_until is not None and step <= self.logged_until:
            return
        if step != self._step:
            self._hand_over()
        self._step = step
        self._row |= metrics

    @rank_zero_only
    def truncate_after(self, step: int) -> None:
        """The run goes on after `step`: rows up to it that W&B lost in a crash are filled in from metrics.csv."""
        if self.logged_until is None:
            self.logged_until = step
        for row_step, row in read_rows(self._folder / FILE):
            if row_step <= step:
                self.log_metrics(row, row_step)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        if status == "success":
            self._hand_over()
        super().finalize(status)

    def _hand_over(self) -> None:
        row, self._row = self._row, {}
        if not row or not self._works:
            return
        try:
            self.experiment.log(row | {STEP: self._step}, step=self._step, commit=True)
        except Exception as error:  # whatever it is, it is not worth a training run
            self._works = False
            log.warning(
                f"W&B failed at step {self._step} ({type(error).__name__}: {error}); training continues without it, "
                f"metrics.csv has every row, and the next start of the run sends what is missing"
            )
            return
        with suppress(OSError):  # a full disk is no failure of W&B
            (self._folder / STEP_FILE).write_text(f"{self._step}\n")


def build_wandb(
    *,
    folder: str,
    project: str = "imagenet-opt",
    name: str | None = None,
    group: str | None = None,
    mode: Literal["auto", "online", "offline", "disabled"] = "auto",
) -> WandbRunLogger:
    """A W&B logger, writing below `folder`, whose wandb_id.txt keeps the run's id.

    mode: "auto" is online when a key is found, else offline; the variable WANDB_MODE wins. Never asks for a login:
    without a usable key, or when the server does not answer, every online mode continues offline.
    """
    experiment, known = None, None
    if rank_zero_only.rank == 0:  # type: ignore[attr-defined]
        run_id = _run_id(Path(folder))
        mode_now = _usable(os.environ.get("WANDB_MODE") or mode)
        experiment = _start(mode_now, {"project": project, "name": name, "group": group, "dir": folder, "id": run_id})
        online = not (experiment.offline or experiment.disabled)
        known = experiment.starting_step - 1 if online else _logged_offline(Path(folder))
    return WandbRunLogger(folder=folder, logged_until=known, experiment=experiment, project=project, name=name)


def log_report(folder: Path, html: Path, *, project: str) -> str:
    """Show a page in the run of a run folder, which is resumed; offline without a key. Returns what was done.

    It becomes a row after the last one. Raises ConfigError where the folder names no run.
    """
    import wandb

    if not (folder / ID_FILE).is_file():
        raise ConfigError(
            f"{folder} has no {ID_FILE}, so W&B has no run of it; train with logger=wandb, or leave out --wandb"
        )
    logger = build_wandb(folder=str(folder), project=project)
    run = logger.experiment
    page = wandb.Html(html.read_text(encoding="utf-8"), inject=False, data_is_not_path=True)
    run.log({REPORT_KEY: page}, step=max(run.step, (logger.logged_until or 0) + 1))
    finish(logger, exit_code=0)
    if run.disabled:
        return "W&B is disabled, so nothing was logged"
    later = f"; wandb sync {Path(run.dir).parent} sends it" if run.offline else ""
    return f"logged as {REPORT_KEY} in W&B's run {run.id}{later}"


def has_key() -> bool:
    """Whether W&B can log in without asking: by WANDB_API_KEY, or by what `wandb login` left in ~/.netrc."""
    import wandb

    wandb.setup(wandb.Settings(silent=True))
    try:
        return wandb.login(prompt=False, verify=False)
    except wandb.errors.Error as error:
        log.warning(f"W&B cannot use its key: {error}")
        return False


def sync_command(logger: Any) -> str | None:
    """What sends a run that W&B records offline; None for any other run, and for other loggers."""
    run = _run_of(logger)
    return f"wandb sync {Path(run.dir).parent}" if run is not None and run.offline and not run.disabled else None


def _run_of(logger: Any) -> Any:
    run = getattr(logger, "_experiment", None)
    return run if type(run).__module__.startswith("wandb.") else None


def finish(logger: Any, *, exit_code: int, preempted: bool = False) -> None:
    """End the run of a W&B logger, so that the next job of a sweep starts its own; other loggers are left alone.

    preempted: W&B shows the run as such, not as failed, and has less time.
    """
    run = _run_of(logger)
    if run is None:
        return
    said: list[str | None] = []
    ending = threading.Thread(target=lambda: said.append(_end(run, exit_code, preempted)), daemon=True)
    ending.start()
    ending.join(_PREEMPTED_SECONDS if preempted else None)  # W&B's own time-out is fixed when its run begins
    if warning := said[0] if said else _sent_later(run, _PREEMPTED_SECONDS):
        log.warning(warning)


def _end(run: Any, exit_code: int, preempted: bool) -> str | None:
    """What went wrong."""
    try:
        if preempted:
            run.mark_preempting()
        run.finish(exit_code=exit_code)
    except TimeoutError:
        return _sent_later(run, _FINISH_SECONDS)
    except Exception as error:  # a finished training is not undone by its log
        return f"W&B could not end its run ({type(error).__name__}: {error})"
    return None


def _sent_later(run: Any, seconds: float) -> str:
    command = f"wandb sync --include-online {Path(run.dir).parent}"
    return f"W&B did not answer for {seconds} s; `{command}` sends the rest later"


def _usable(mode: str) -> str:
    """`mode`, or "offline" where W&B would ask for a login. Raises ConfigError for one that W&B does not have."""
    if mode in ("offline", "dryrun", "disabled"):
        return mode
    if mode not in ("auto", "online", "run", "shared"):
        raise ConfigError(f"logger.wandb.mode or WANDB_MODE is {mode!r}; expected auto, online, offline or disabled")
    if has_key():
        return "online" if mode == "auto" else mode
    if mode != "auto":
        log.warning(f"no W&B key for mode {mode}: continuing offline; `wandb login` or WANDB_API_KEY gives one")
    return "offline"


def _start(mode: str, options: dict[str, Any]) -> Any:
    import wandb

    settings = wandb.Settings(
        silent=True,
        console="off",
        init_timeout=_INIT_SECONDS,
        finish_timeout=_FINISH_SECONDS,
        finish_timeout_raises=True,
        # W&B's picture of the process has its arguments, paths and, under SLURM, each variable named SLURM_*.
        x_disable_meta=True,
        disable_git=True,
        disable_code=True,
        save_code=False,
        disable_job_creation=True,
    )
    options = options | {"settings": settings, "resume": "allow"}
    try:
        run = _start_offline(options) if mode == "offline" else wandb.init(mode=mode, **options)  # type: ignore[arg-type]
    except (wandb.errors.Error, OSError) as error:
        log.warning(f"W&B cannot be reached ({first_line(error)}); continuing offline, `wandb sync` sends it later")
        wandb.teardown()  # else the id is still taken by the attempt that failed
        run = _start_offline(options)
    run.define_metric("*", step_metric=STEP, step_sync=True)
    for name in BY_EPOCH:
        run.define_metric(name, step_metric="epoch")
    return run


def _start_offline(options: dict[str, Any]) -> Any:
    import wandb

    try:
        return wandb.init(mode="offline", **options)
    except Exception as error:  # whatever it is, it is not worth a training run
        log.warning(f"W&B cannot write below {options['dir']} ({first_line(error)}); continuing without it")
        wandb.teardown()
        return wandb.init(mode="disabled", **options)


def _logged_offline(folder: Path) -> int | None:
    """The last step that earlier starts handed over; None when that is not known."""
    try:
        return int((folder / STEP_FILE).read_text())
    except (OSError, ValueError):
        return None


def _run_id(folder: Path) -> str:
    file = folder / ID_FILE
    if file.exists():
        found = file.read_text(errors="replace").strip()
        if _RUN_ID.fullmatch(found):
            return found
        log.warning(f"{file} holds no id of a W&B run; a new W&B run begins")
    made = uuid.uuid4().hex[:8]
    file.write_text(f"{made}\n")
    return made
