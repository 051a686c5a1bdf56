"""Weights & Biases: online when there is a key, else offline; the same run over any number of restarts."""

import logging
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lightning.fabric.utilities.rank_zero import rank_zero_only

from imagenet_opt.errors import ConfigError

if TYPE_CHECKING:
    from lightning.pytorch.loggers import WandbLogger

log = logging.getLogger(__name__)

_INIT_SECONDS = 30
_FINISH_SECONDS = 120
STEP = "trainer/global_step"  # Lightning's name
# Whole names: which of two patterns wins, such as * and val/*, W&B leaves open.
BY_EPOCH = ("val/loss", "val/acc1", "val/acc5", "throughput/epoch_seconds")


def build_wandb(
    *,
    folder: str,
    project: str,
    name: str | None = None,
    group: str | None = None,
    mode: Literal["auto", "online", "offline", "disabled"] = "auto",
) -> "WandbLogger":
    """Lightning's W&B logger, writing below `folder`, whose wandb_id.txt keeps the run's id.

    mode: "auto" is online when a key is found, else offline; the variable WANDB_MODE wins. Never asks for a login:
    without a usable key, or when the server does not answer, every online mode goes on offline.
    """
    from lightning.pytorch.loggers import WandbLogger

    experiment = None
    if rank_zero_only.rank == 0:  # type: ignore[attr-defined]
        options = {"project": project, "name": name, "group": group, "dir": folder, "id": _run_id(Path(folder))}
        experiment = _start(_usable(os.environ.get("WANDB_MODE") or mode), options)
    return WandbLogger(project=project, name=name, save_dir=folder, experiment=experiment)


def has_key() -> bool:
    """Whether W&B can log in without asking: by WANDB_API_KEY, or by what `wandb login` left in ~/.netrc."""
    import wandb

    wandb.setup(wandb.Settings(silent=True))
    try:
        return wandb.login(prompt=False, verify=False)
    except wandb.errors.Error as error:
        log.warning(f"W&B cannot use its key: {error}")
        return False


def finish(logger: Any, *, exit_code: int, preempted: bool = False) -> None:
    """End the run of a W&B logger, so that the next job of a sweep starts its own; other loggers are left alone.

    preempted: W&B shows the run as such, not as failed.
    """
    run = getattr(logger, "_experiment", None)
    if run is not None and type(run).__module__.startswith("wandb."):
        if preempted:
            run.mark_preempting()
        try:
            run.finish(exit_code=exit_code)
        except TimeoutError:
            command = f"wandb sync --include-online {Path(run.dir).parent}"
            log.warning(f"W&B did not answer for {_FINISH_SECONDS} s; `{command}` sends the rest later")


def _usable(mode: str) -> str:
    """`mode`, or "offline" where W&B would ask for a login. Raises ConfigError for one that W&B does not have."""
    if mode in ("offline", "dryrun", "disabled"):
        return mode
    if mode not in ("auto", "online", "run", "shared"):
        raise ConfigError(f"logger.wandb.mode or WANDB_MODE is {mode!r}; expected auto, online, offline or disabled")
    if has_key():
        return "online" if mode == "auto" else mode
    if mode != "auto":
        log.warning(f"no W&B key for mode {mode}: going on offline; `wandb login` or WANDB_API_KEY gives one")
    return "offline"


def _start(mode: str, options: dict[str, Any]) -> Any:
    import wandb

    settings = wandb.Settings(
        silent=True,
        console="off",
        init_timeout=_INIT_SECONDS,
        finish_timeout=_FINISH_SECONDS,
        finish_timeout_raises=True,
    )
    try:
        run = wandb.init(mode=mode, resume="allow", settings=settings, **options)  # type: ignore[arg-type]
    except (wandb.errors.Error, OSError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        log.warning(f"W&B cannot be reached ({reason}); going on offline, `wandb sync` sends it later")
        wandb.teardown()  # else the id is still taken by the attempt that failed
        run = wandb.init(mode="offline", settings=settings, **options)
    run.define_metric("*", step_metric=STEP, step_sync=True)
    for name in BY_EPOCH:
        run.define_metric(name, step_metric="epoch")
    return run


def _run_id(folder: Path) -> str:
    file = folder / "wandb_id.txt"
    if not file.exists():
        file.write_text(uuid.uuid4().hex[:8] + "\n")
    return file.read_text().strip()
