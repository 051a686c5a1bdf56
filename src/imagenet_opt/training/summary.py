"""The summary of a finished run: its numbers, and the printed table."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from rich import box

from imagenet_opt.display.printable import printable
from imagenet_opt.display.terminal_table import facts_table, terminal
from imagenet_opt.measure.stats.rate import is_too_short
from imagenet_opt.measure.telemetry.idle_causes import HEALTHY_BUSY, sentence
from imagenet_opt.measure.telemetry.peak_memory import peak_gib
from imagenet_opt.run.checkpoint import files as checkpoints
from imagenet_opt.run.loggers.wandb_logger import sync_command
from imagenet_opt.run.numbers import IMAGES_PER_SECOND, METRICS
from imagenet_opt.training.mfu import mfu


def summarize(trainer: Trainer, *, import_seconds: float, run_seconds: float) -> dict[str, float]:
    """Numbers of the whole run by metric name: last validation, rates, waits, loader, peak memory, MFU, start-up, and
    the numbers that the `summary()` of each callback returns."""
    numbers = {k: float(v) for k, v in trainer.callback_metrics.items() if k.startswith(("train/", "val/"))}
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if hasattr(callback, "summary"):
            numbers |= callback.summary()
    numbers |= _loader(trainer) | {
        "steps": trainer.global_step,
        "memory/peak_gib": peak_gib(trainer.strategy.root_device),
        "startup/import_seconds": import_seconds,
        "run_seconds": run_seconds,
    }
    if IMAGES_PER_SECOND in numbers and simulated(trainer) is None:
        numbers |= mfu(trainer, numbers[IMAGES_PER_SECOND])
    return numbers


def _loader(trainer: Trainer) -> dict[str, float]:
    """Options of the training loader. The memory check may have lowered the configured options; auto is resolved."""
    loader: Any = getattr(trainer.train_dataloader, "loader", None)
    names = ("num_workers", "prefetch_factor")
    options = {f"loader/{name}": getattr(loader, name) or 0 for name in names if hasattr(loader, name)}
    order = getattr(getattr(loader, "dataset", None), "order", None)
    return options if order is None else options | {"loader/batch_size": order.batch_size}


def simulated(trainer: Trainer) -> str | None:
    """Name of the accelerator that a callback simulates; None on a real device."""
    names = (getattr(callback, "simulated", None) for callback in trainer.callbacks)  # type: ignore[attr-defined]
    return next((name for name in names if name is not None), None)


@dataclass(frozen=True)
class Setup:
    """simulated: name of the simulated accelerator; None on a real device. unsent: the command that uploads an offline
    W&B run; None without an offline run. mirror: where the checkpoints are mirrored; None without a mirror.
    done_steps: step at which this start resumed the run; 0 for a new run."""

    simulated: str | None = None
    precision: str | None = None
    on_gpu: bool = False
    unsent: str | None = None
    mirror: str | None = None
    done_steps: int = 0


def setup_of(trainer: Trainer, *, done_steps: int) -> Setup:
    return Setup(
        simulated=simulated(trainer),
        precision=str(trainer.precision),
        on_gpu=trainer.strategy.root_device.type == "cuda",
        unsent=next(filter(None, map(sync_command, trainer.loggers)), None),
        mirror=next((each.mirrored for each in trainer.callbacks if hasattr(each, "mirrored")), None),  # type: ignore[attr-defined]
        done_steps=done_steps,
    )


def print_summary(numbers: dict[str, float], run_folder: Path, setup: Setup) -> None:
    layout = {"box": box.ROUNDED, "pad_edge": True, "padding": (0, 1), "title": "run finished", "title_justify": "left"}
    console = terminal()
    console.print(facts_table(_rows(numbers, run_folder, setup), style="bold", **layout))
    for name, text in _places(run_folder, setup).items():  # in whole lines, to copy
        if text is not None:
            console.print(printable(f"{name}: {text}"), soft_wrap=True)


def _places(run_folder: Path, setup: Setup) -> dict[str, str | None]:
    send = None if setup.unsent is None else f"recorded offline; to send it: {setup.unsent}"
    return {"run folder": str(run_folder), "mirror": setup.mirror, "W&B": send}


def _rows(numbers: dict[str, float], run_folder: Path, setup: Setup) -> list[tuple[str, str]]:
    def show(shape: str, *keys: str) -> str:
        values: list[Any] = [numbers.get(key) for key in keys]
        return "not measured" if None in values else shape.format(*values)

    startup = [
        show("import {:.1f} s", "startup/import_seconds"),
        show("first batch {:.1f} s", "startup/first_batch_seconds"),
        show("compile {:.1f} s", "startup/compile_seconds") if "startup/compile_seconds" in numbers else "compile off",
        show("first step {:.1f} s", "startup/first_step_seconds"),
    ]
    written = [name for name in (checkpoints.LAST, checkpoints.BEST, METRICS) if (run_folder / name).exists()]
    of_peak = show("{:.1%} of {:,.0f} TFLOP/s", "throughput/mfu_fraction", "throughput/peak_tflops_per_second")
    speed = show("{:.2f} it/s, {:.0f} images/s", "throughput/it_per_second", IMAGES_PER_SECOND)
    rows = [
        ("accuracy", _accuracy(numbers)),
        ("speed", speed + _doubt(numbers).partition(":")[0]),
        ("precision", setup.precision),
        ("MFU", of_peak if "throughput/mfu_fraction" in numbers else None),
        ("waiting for data", show("{:.1%} of the time", "throughput/data_wait_fraction") + _doubt(numbers)),
        ("bottleneck", _bottleneck(numbers, setup)),
        ("GPU busy", _gpu_busy(numbers, setup)),
        ("peak memory", show("{:.1f} GiB", "memory/peak_gib")),
        ("start-up", ", ".join(startup)),
        _duration(numbers, setup.done_steps),
        ("written", ", ".join(written) or "no checkpoint, no metrics"),
    ]
    return [(name, text) for name, text in rows if text is not None]


def _duration(numbers: dict[str, float], done_steps: int) -> tuple[str, str]:
    """Seconds and steps of this start. After a resume also the steps of all starts, whose seconds are unknown."""
    if not {"run_seconds", "steps"} <= numbers.keys():
        return "whole run", "not measured"
    seconds, steps = numbers["run_seconds"], numbers["steps"]
    if not done_steps:
        return "whole run", f"{seconds:.0f} s, {steps:.0f} steps"
    return "this start", f"{seconds:.0f} s, {steps - done_steps:.0f} of {steps:.0f} steps; resumed at step {done_steps}"


def _accuracy(numbers: dict[str, float]) -> str:
    if "val/acc1" not in numbers:
        return "not measured: the run ended before a validation"
    top5 = f", acc5 {numbers['val/acc5']:.1%}" if "val/acc5" in numbers else ""
    return f"acc1 {numbers['val/acc1']:.1%}{top5} on validation"


def _gpu_busy(numbers: dict[str, float], setup: Setup) -> str | None:
    if setup.simulated is not None and (share := numbers.get("rehearsal/accelerator_utilization")) is not None:
        return f"{share:.0%} of a {setup.simulated}"
    if setup.on_gpu and (percent := numbers.get("gpu/utilization_percent")) is not None:
        return f"{percent:.0f} %"
    return None


def _bottleneck(numbers: dict[str, float], setup: Setup) -> str:
    group = "bottleneck/"
    shares = {name.removeprefix(group): share for name, share in numbers.items() if name.startswith(group)}
    if not shares:
        return "not measured"
    if setup.simulated or setup.on_gpu:
        return sentence(shares, f"the {setup.simulated}" if setup.simulated else "the GPU")
    limit = f"the CPU, which trains {shares['busy']:.0%} of the time"
    return limit if shares["busy"] >= HEALTHY_BUSY else sentence(shares, "the CPU")


def _doubt(numbers: dict[str, float]) -> str:
    """A warning if a short run mostly used batches that workers had prepared during its start; else empty."""
    if not is_too_short(numbers):
        return ""
    ready, measured = numbers["throughput/ready_batches"], numbers["throughput/measured_batches"]
    return f"; too short to tell: {ready:.0f} of {measured:.0f} batches were ready when measuring began"
