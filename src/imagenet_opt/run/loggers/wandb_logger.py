"""Weights & Biases: online with a key, otherwise offline; a resumed run stays the same W&B run."""

import logging
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.loggers import WandbLogger

from imagenet_opt.errors import ConfigError, first_line
from imagenet_opt.private_api import begun_experiment
from imagenet_opt.run.loggers.run_logger import is_offline
from imagenet_opt.run.loggers.sent_rows import SentRows, last_sent_step, run_id

log = logging.getLogger(__name__)

_INIT_SECONDS = 30
_FINISH_SECONDS = 30
"""Limit for sending the rows that W&B still holds, since a preempted run must leave its machine."""
STEP = "trainer/global_step"  # Lightning's name
# Full names, since W&B does not define which of two matching patterns wins (* and val/*).
BY_EPOCH = ("val/loss", "val/acc1", "val/acc5", "throughput/epoch_seconds")


class WandbRunLogger(SentRows, WandbLogger):
    """Lightning's W&B logger; W&B's own step is the training step."""

    service, key = "W&B", "wandb"

    def __init__(self, *, folder: str, logged_until: int | None, experiment: Any, **options: Any) -> None:
        super().__init__(folder=folder, logged_until=logged_until, save_dir=folder, experiment=experiment, **options)

    def _send(self, row: dict[str, float], step: int) -> None:
        self.experiment.log(row | {STEP: step}, step=step, commit=True)

    def summarize(self, numbers: Mapping[str, float]) -> None:
        """Make the numbers the summary, which tables compare, in place of the last value of each metric."""
        if (run := begun_experiment(self)) is not None:
            self._at_end(lambda: run.summary.update(dict(numbers)), "did not take the summary")

    def finish(self, *, exit_code: int, preempted: bool = False) -> None:
        """preempted: W&B shows the run as preempted."""
        if (run := begun_experiment(self)) is None:
            return

        def end() -> None:
            if preempted:
                run.mark_preempting()
            run.finish(exit_code=exit_code)

        def remedy() -> str:
            return f"; to send the rest later, run `{_sync(run, '--include-online')}`"

        self._at_end(end, "could not end its run", remedy)

    def unsent(self) -> str | None:
        run = begun_experiment(self)
        is_offline_run = run is not None and run.offline and not run.disabled
        return f"W&B: recorded offline; to send it: {_sync(run)}" if is_offline_run else None


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
        id = run_id(Path(folder), "wandb")
        mode_now = os.environ.get("WANDB_MODE") or mode
        mode_now = "offline" if is_offline() and mode_now != "disabled" else _usable(mode_now)
        experiment = _start(mode_now, {"project": project, "name": name, "group": group, "dir": folder, "id": id})
        online = not (experiment.offline or experiment.disabled)
        logged_until = experiment.starting_step - 1 if online else last_sent_step(Path(folder), "wandb")
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


def _sync(run: Any, *options: str) -> str:
    return shlex.join(["wandb", "sync", *options, str(Path(run.dir).parent)])


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
