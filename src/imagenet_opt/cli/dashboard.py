"""`imagenet-opt dashboard`: creates a W&B workspace with charts that show whether the GPU waits for data."""

from imagenet_opt.cli.arguments import Parser
from imagenet_opt.errors import ConfigError

HELP = """Create a W&B workspace with the charts of a run: does the GPU wait for data?

imagenet-opt dashboard --entity USER_OR_TEAM [--project NAME] [--dry-run]

  --entity   W&B user or team, who will own the workspace
  --project  W&B project of the runs, logger.wandb.project (default imagenet-opt)
  --dry-run  only print the sections and their charts

Needs a key (`wandb login`) and pip install wandb-workspaces."""
SECTIONS = {
    "Throughput": tuple(
        f"throughput/{name}" for name in ("it_per_second", "images_per_second", "data_wait_fraction", "epoch_seconds")
    ),
    "GPU": ("gpu/utilization_percent", "gpu/memory_used_gib", "gpu/power_watts"),
    "Host": ("host/cpu_percent", "host/memory_used_gib"),
    "Training": ("train/loss", "train/acc1", "lr"),
    "Validation": ("val/loss", "val/acc1", "val/acc5"),
}


def axis(metric: str) -> str:
    """Metric of the x axis. W&B's own Step counts logged rows, not training steps."""
    from imagenet_opt.run.loggers.wandb_logger import BY_EPOCH, STEP  # imports Lightning

    return "epoch" if metric in BY_EPOCH else STEP


def main(argv: list[str]) -> None:
    parser = Parser("dashboard")
    parser.add_argument("--entity")
    parser.add_argument("--project", default="imagenet-opt")
    parser.add_argument("--dry-run", action="store_true")
    arguments = parser.parse_args(argv)
    if arguments.dry_run:
        for section, metrics in SECTIONS.items():
            print(section, *(f"  {metric} by {axis(metric)}" for metric in metrics), sep="\n")
        return
    if not arguments.entity:
        raise ConfigError("--entity is missing; add --entity USER_OR_TEAM, who owns the workspace")
    print(f"created {create(arguments.entity, arguments.project)}")


def create(entity: str, project: str) -> str:
    """Save the workspace and return its address. Raises ConfigError without the package or a key."""
    try:
        import wandb_workspaces.reports.v2 as reports
        import wandb_workspaces.workspaces as workspaces
    except ImportError as error:
        raise ConfigError("the dashboard needs one more package: pip install wandb-workspaces") from error
    from imagenet_opt.run.loggers.wandb_logger import has_key

    if not has_key():
        raise ConfigError("W&B has no key to save the workspace with; run `wandb login`, or set WANDB_API_KEY")
    sections = []
    for section, metrics in SECTIONS.items():
        panels = [reports.LinePlot(title=metric, x=axis(metric), y=[metric]) for metric in metrics]
        sections.append(workspaces.Section(name=section, is_open=True, panels=panels))
    workspace = workspaces.Workspace(name="Is the GPU fed?", entity=entity, project=project, sections=sections)
    workspace.save()
    return str(workspace.url)
