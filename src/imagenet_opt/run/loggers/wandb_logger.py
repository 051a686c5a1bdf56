"""Weights & Biases: online with a key, otherwise offline; a resumed run stays the same W&B run."""

import logging
import os
import re
import shlex
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.loggers import WandbLogger

from imagenet_opt.errors import ConfigError, first_line
from imagenet_opt.run.checkpoint.names import step_file, step_files
from imagenet_opt.run.numbers import METRICS, read_rows

log = logging.getLogger(__name__)

_INIT_SECONDS = 30
_FINISH_SECONDS = 30
"""Limit for sending the rows that W&B still holds, since a preempted run must leave its machine."""
ID_FILE = "wandb_id.txt"
"""File in the run folder with the id of the W&B run."""
STEP_FILE = "wandb_step.txt"
"""File in the run folder with the last step that was sent to W&B."""
_RUN_ID = re.compile(r"[0-9A-Za-z_-]{1,64}")
STEP = "trainer/global_step"  # Lightning's name
# Full names, since W&B does not define which of two matching patterns wins (* and val/*).
BY_EPOCH = ("val/loss", "val/acc1", "val/acc5", "throughput/epoch_seconds")


class WandbRunLogger(WandbLogger):
    """Lightning's W&B logger; W&B's own step is the training step.

    logged_until: the last step that W&B already has, None if unknown; rows up to this step are not sent again.
    A row is sent when the next row starts, since validation adds metrics to the row of its step. A failed run does
    not send its last row; the resumed run sends this row from metrics.csv in `folder` or logs it again.
    When W&B fails, one warning is logged, and training continues without W&B.
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
        if self.logged_until is None or step > self.logged_until:
            if step != self._step:
                self._send_row()
            self._step = step
            self._row |= metrics

    @rank_zero_only
    def truncate_after(self, step: int) -> None:
        """Before a run resumes after `step`, send the rows up to `step` from metrics.csv that W&B lost in a crash.

        A warning says what W&B keeps if the run goes back behind a later checkpoint, as with resume_from=FILE.
        """
        if self.logged_until is None:
            self.logged_until = step
        files = step_files(self._folder)
        if files and files[-1] > step_file(self._folder, step + 1) and self.logged_until > step:
            log.warning(
                f"W&B takes no step twice: it keeps the old curve up to step {self.logged_until}, and the new one up "
                "to there is in metrics.csv alone; for a curve of its own, add hydra.run.dir=NEW_FOLDER to resume_from"
            )
        for row_step, row in read_rows(self._folder / METRICS):
            if row_step <= step:
                self.log_metrics(row, row_step)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        if status == "success":
            self._send_row()
        super().finalize(status)

    def _send_row(self) -> None:
        row, self._row = self._row, {}
        if not row or not self._works:
            return
        try:
            self.experiment.log(row | {STEP: self._step}, step=self._step, commit=True)
        except Exception as error:  # no failure of W&B may end the training
            self._works = False
            log.warning(
                f"W&B failed at step {self._step} ({type(error).__name__}: {error}); training continues without W&B, "
                "metrics.csv has every row, and the next start of the run sends the missing rows"
            )
            return
        with suppress(OSError):  # a full disk is not a failure of W&B
            _write_step(self._folder / STEP_FILE, self._step)


def build_wandb(
    *,
    folder: str,
    project: str = "imagenet-opt",
    name: str | None = None,
    group: str | None = None,
    mode: Literal["auto", "online", "offline", "disabled"] = "auto",
) -> WandbRunLogger:
    """Build a W&B logger that writes below `folder`; wandb_id.txt there holds the id of the W&B run.

    mode: "auto" is online with a key, otherwise offline; the variable WANDB_MODE overrides it. W&B never asks for a
    login: without a usable key, or when the server does not answer, every online mode becomes offline.
    """
    experiment, logged_until = None, None
    if rank_zero_only.rank == 0:  # type: ignore[attr-defined]
        run_id = _run_id(Path(folder))
        mode_now = _usable(os.environ.get("WANDB_MODE") or mode)
        experiment = _start(mode_now, {"project": project, "name": name, "group": group, "dir": folder, "id": run_id})
        online = not (experiment.offline or experiment.disabled)
        logged_until = experiment.starting_step - 1 if online else _last_sent_step(Path(folder))
    return WandbRunLogger(folder=folder, logged_until=logged_until, experiment=experiment, project=project, name=name)


def has_key() -> bool:
    """Whether W&B can log in without a prompt: by WANDB_API_KEY, or by the entry of `wandb login` in ~/.netrc."""
    import wandb

    wandb.setup(wandb.Settings(silent=True))
    try:
        return wandb.login(prompt=False, verify=False)
    except wandb.errors.Error as error:
        log.warning(f"W&B cannot use its key: {error}")
        return False


def sync_command(logger: Any) -> str | None:
    """The command that uploads a run that W&B records offline; None for other runs and other loggers."""
    run = _run_of(logger)
    return _sync(run) if run is not None and run.offline and not run.disabled else None


def _sync(run: Any, *options: str) -> str:
    return shlex.join(["wandb", "sync", *options, str(Path(run.dir).parent)])


def log_summary(logger: Any, numbers: Mapping[str, float]) -> None:
    """Make the numbers of the whole run the summary of its W&B run, which tables compare; other loggers are ignored.

    Call after the fit: W&B's own summary, the last value of each metric, is replaced.
    """
    run = _run_of(logger)
    if run is None:
        return
    try:
        run.summary.update(dict(numbers))
    except Exception as error:  # a finished training does not fail because of W&B
        log.warning(f"W&B did not take the summary ({type(error).__name__}: {error})")


def _run_of(logger: Any) -> Any:
    run = getattr(logger, "_experiment", None)
    return run if type(run).__module__.startswith("wandb.") else None


def finish(logger: Any, *, exit_code: int, preempted: bool = False) -> None:
    """End the run of a W&B logger, so that the next job of a sweep starts a new run; other loggers are ignored.

    preempted: W&B shows the run as preempted, not as failed. A finished training does not fail because of W&B.
    """
    run = _run_of(logger)
    if run is None:
        return
    try:
        if preempted:
            run.mark_preempting()
        run.finish(exit_code=exit_code)
    except Exception as error:
        command = _sync(run, "--include-online")
        log.warning(
            f"W&B could not end its run ({type(error).__name__}: {first_line(error)}); to send the rest later, run "
            f"`{command}`"
        )


def _usable(mode: str) -> str:
    """`mode`, or "offline" where W&B would ask for a login. Raises ConfigError for an unknown mode."""
    if mode in ("offline", "dryrun", "disabled"):
        return mode
    if mode not in ("auto", "online", "run", "shared"):
        raise ConfigError(f"logger.wandb.mode or WANDB_MODE is {mode!r}; expected auto, online, offline or disabled")
    if has_key():
        return "online" if mode == "auto" else mode
    if mode != "auto":
        log.warning(f"no W&B key for mode {mode}: logging offline; set a key with `wandb login` or WANDB_API_KEY")
    return "offline"


def _start(mode: str, options: dict[str, Any]) -> Any:
    import wandb

    settings = wandb.Settings(
        silent=True,
        console="off",
        init_timeout=_INIT_SECONDS,
        finish_timeout=_FINISH_SECONDS,
        finish_timeout_raises=True,
        # W&B's metadata would hold the arguments, paths and, under SLURM, each variable named SLURM_*.
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
        log.warning(f"W&B cannot be reached ({first_line(error)}); logging offline, `wandb sync` sends the run later")
        wandb.teardown()  # otherwise the failed attempt still holds the run id
        run = _start_offline(options)
    run.define_metric("*", step_metric=STEP, step_sync=True)
    for name in BY_EPOCH:
        run.define_metric(name, step_metric="epoch")
    return run


def _start_offline(options: dict[str, Any]) -> Any:
    import wandb

    try:
        return wandb.init(mode="offline", **options)
    except Exception as error:  # no failure of W&B may end the training
        log.warning(f"W&B cannot write below {options['dir']} ({first_line(error)}); training continues without W&B")
        wandb.teardown()
        return wandb.init(mode="disabled", **options)


def _write_step(file: Path, step: int) -> None:
    """Replace the number in `file`. All numbers are equally long: to empty a file first can take 1 ms."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT, 0o666)
    try:
        os.write(descriptor, f"{step:<19}\n".encode())
    finally:
        os.close(descriptor)


def _last_sent_step(folder: Path) -> int | None:
    """The last step that earlier starts of the run logged to W&B; None if unknown."""
    try:
        return int((folder / STEP_FILE).read_text())
    except (OSError, ValueError):
        return None


def _run_id(folder: Path) -> str:
    file = folder / ID_FILE
    if file.exists():
        run_id = file.read_text(errors="replace").strip()
        if _RUN_ID.fullmatch(run_id):
            return run_id
        log.warning(f"{file} holds no valid id of a W&B run; starting a new W&B run")
    run_id = uuid.uuid4().hex[:8]
    with suppress(OSError):  # a full disk must not end the training; the next start is then another run in W&B
        file.write_text(f"{run_id}\n")
    return run_id
