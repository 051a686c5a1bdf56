"""A report in the Weights & Biases run that it is about."""

from pathlib import Path

from imagenet_opt.errors import ConfigError
from imagenet_opt.run.loggers.wandb_run import ID_FILE, build_wandb, finish

KEY = "report"
"""Of the panel in W&B."""


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
    run.log({KEY: page}, step=max(run.step, (logger.logged_until or 0) + 1))
    finish(logger, exit_code=0)
    if run.disabled:
        return "W&B is disabled, so nothing was logged"
    later = f"; wandb sync {Path(run.dir).parent} sends it" if run.offline else ""
    return f"logged as {KEY} in W&B's run {run.id}{later}"
