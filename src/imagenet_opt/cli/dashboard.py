"""`imagenet-opt dashboard`: creates a W&B workspace with charts that show whether the GPU waits for data."""

from typing import Any

from imagenet_opt.cli.arguments import Parser
from imagenet_opt.errors import ConfigError

HELP = """Create a W&B workspace with the charts of a project: does the GPU wait for data?

imagenet-opt dashboard --entity USER_OR_TEAM [--project NAME]

  --entity   W&B user or team, who will own the workspace
  --project  W&B project of the runs, logger.wandb.project (default imagenet-opt)

Charts over the steps of each run; and for sweeps a table of the differences between runs and a chart with an axis for
batch size, workers, prefetch, data wait, GPU and images/s. Needs a key (`wandb login`), and
pip install "imagenet-opt[dashboard]"."""


def _named(group: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{group}/{name}" for name in names)


SECTIONS = {
    "Throughput": _named("throughput", "it_per_second", "images_per_second", "epoch_seconds"),
    "Data wait": ("throughput/data_wait_fraction",),
    "GPU": _named("gpu", "utilization_percent", "memory_used_gib", "power_watts"),
    "Host": _named("host", "cpu_percent", "memory_used_gib"),
    "Loader": _named(
        "loader", "read_seconds", "decode_seconds", "cpu_wait_seconds", "mb_read", "reads_in_flight", "queue_depth",
        "queue_seconds", "skipped",
    ),
    "Bottleneck": _named(
        "bottleneck", "busy", "read", "decode", "cpu", "main_process", "logging", "checkpoint", "validation", "copy",
        "unexplained",
    ),
    "Training": ("train/loss", "train/acc1", "lr"),
    "Validation": _named("val", "loss", "acc1", "acc5"),
}  # fmt: skip
"""Section -> metrics; each is a line chart."""
SWEEP = {
    "loader/batch_size": "batch size",
    "loader/num_workers": "workers",
    "loader/prefetch_factor": "prefetch factor",
    "throughput/data_wait_fraction": "data wait",
    "gpu/utilization_percent": "GPU busy, %",
    "throughput/images_per_second": "images/s",
}
"""Number in a run's summary -> axis of the parallel coordinates of a sweep, from left to right."""
SWEEP_SECTION = "Sweep"


def axis(metric: str) -> str:
    """Metric of the x axis. W&B's own Step counts logged rows, not training steps."""
    from imagenet_opt.run.loggers.wandb_logger import BY_EPOCH, STEP  # imports Lightning

    return "epoch" if metric in BY_EPOCH else STEP


def main(argv: list[str]) -> None:
    """Save the workspace and print its address. Raises ConfigError without a key."""
    parser = Parser("dashboard", overrides=False)
    parser.add_argument("--entity")
    parser.add_argument("--project", default="imagenet-opt")
    arguments = parser.parse_args(argv)
    if not arguments.entity:
        raise ConfigError("--entity is missing; add --entity USER_OR_TEAM, who owns the workspace")
    from imagenet_opt.run.loggers.wandb_logger import has_key

    made = workspace(arguments.entity, arguments.project)
    if not has_key():
        raise ConfigError("W&B has no key to save the workspace with; run `wandb login`, or set WANDB_API_KEY")
    made.save()
    print(f"created {made.url}")


def workspace(entity: str, project: str) -> Any:
    """The workspace, not yet saved. The numbers of SWEEP are also columns of W&B's table of runs. Raises ConfigError
    without wandb-workspaces."""
    try:
        import wandb_workspaces.reports.v2 as reports
        import wandb_workspaces.workspaces as workspaces
    except ModuleNotFoundError as error:
        raise ConfigError('dashboard needs wandb-workspaces: pip install "imagenet-opt[dashboard]"') from error

    sections = []
    for name, metrics in SECTIONS.items():
        panels = [reports.LinePlot(title=metric, x=axis(metric), y=[metric]) for metric in metrics]
        sections.append(workspaces.Section(name=name, is_open=True, panels=panels))
    columns = [
        reports.ParallelCoordinatesPlotColumn(metric=reports.SummaryMetric(name), display_name=label)
        for name, label in SWEEP.items()
    ]
    chart = reports.ParallelCoordinatesPlot(title="Batch size and workers", columns=columns)
    table = reports.RunComparer(diff_only="split")
    sections.append(workspaces.Section(name=SWEEP_SECTION, is_open=True, panels=[chart, table]))
    pinned = workspaces.RunsetSettings(pinned_columns=[f"summary:{name}" for name in SWEEP])
    return workspaces.Workspace(
        name="Is the GPU fed?", entity=entity, project=project, sections=sections, runset_settings=pinned
    )
