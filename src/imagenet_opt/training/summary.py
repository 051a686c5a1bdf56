"""The summary of a finished run: its numbers, and the printed table."""

import math
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import EarlyStopping, Timer
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason
from rich import box

from imagenet_opt.data.prefetcher import DevicePrefetcher
from imagenet_opt.display.printable import printable
from imagenet_opt.display.terminal_table import facts_table, terminal
from imagenet_opt.measure.stats.rate import is_too_short
from imagenet_opt.measure.telemetry.idle_causes import HEALTHY_BUSY, MIN_STEPS, sentence
from imagenet_opt.measure.telemetry.peak_memory import peak_gib
from imagenet_opt.run.hooks import SimulatesDevice, Summarizes, callbacks_of
from imagenet_opt.run.loggers.run_logger import run_loggers
from imagenet_opt.run.numbers import BEST_EPOCH, IMAGES_PER_SECOND

_STARTUP = ("import", "first batch", "compile", "first step")


def summarize(trainer: Trainer, *, import_seconds: float, run_seconds: float) -> dict[str, float]:
    """Numbers of the whole run by metric name: last validation, rates, waits, loader, peak memory, start-up, and the
    numbers that the `summary()` of each callback returns."""
    numbers = {k: float(v) for k, v in trainer.callback_metrics.items() if k.startswith(("train/", "val/"))}
    for callback in callbacks_of(trainer):
        if isinstance(callback, Summarizes):
            numbers |= callback.summary()
    return _loader(trainer) | {
        **numbers,
        "steps": trainer.global_step,
        "memory/peak_gib": peak_gib(trainer.strategy.root_device),
        "startup/import_seconds": import_seconds,
        "run_seconds": run_seconds,
    }


def stopped_by(trainer: Trainer) -> str | None:
    """The key of the limit that stopped the fit before its last step; None if there is no such limit."""
    for callback in callbacks_of(trainer) if trainer.should_stop else ():
        if isinstance(callback, Timer) and (callback.time_remaining() or 0) <= 0:
            return "trainer.max_time"
        if isinstance(callback, EarlyStopping) and callback.stopping_reason != EarlyStoppingReason.NOT_STOPPED:
            by_patience = callback.stopping_reason == EarlyStoppingReason.PATIENCE_EXHAUSTED
            return f"callbacks.early_stop.{'patience' if by_patience else 'stopping_threshold'}"
    return None


def _loader(trainer: Trainer) -> dict[str, float]:
    """Options of the training loader. The memory check may have lowered the configured options; auto is resolved."""
    if not isinstance(loader := trainer.train_dataloader, DevicePrefetcher):
        return {}
    names = "num_workers", "prefetch_factor", "batch_size"
    return {f"loader/{name}": getattr(loader, name) for name in names}


def print_summary(numbers: dict[str, float], run_folder: Path, trainer: Trainer, *, done_steps: int) -> None:
    """done_steps: step at which this start resumed the run; 0 for a new run."""
    layout = {"box": box.ROUNDED, "pad_edge": True, "padding": (0, 1), "title": "run finished", "title_justify": "left"}
    console = terminal()
    console.print(facts_table(_rows(numbers, trainer, done_steps), style="bold", **layout))
    unsent = (logger.unsent() for logger in run_loggers(trainer))
    for place in (f"run folder: {run_folder}", *filter(None, unsent)):  # in whole lines, to copy
        console.print(printable(place), soft_wrap=True)


def _device(trainer: Trainer) -> str:
    for callback in callbacks_of(trainer):
        if isinstance(callback, SimulatesDevice):
            return f"the {callback.simulated}"
    return "the GPU" if trainer.strategy.root_device.type == "cuda" else "the CPU"


def _rows(numbers: dict[str, float], trainer: Trainer, done_steps: int) -> list[tuple[str, str]]:
    def show(shape: str, *keys: str) -> str:
        values: list[Any] = [numbers.get(key) for key in keys]
        return "not measured" if None in values else shape.format(*values)

    parts = {name: f"startup/{name.replace(' ', '_')}_seconds" for name in _STARTUP}
    startup = [f"{name} {numbers[key]:.1f} s" for name, key in parts.items() if key in numbers]
    speed = show("{:.2f} it/s, {:.0f} images/s", "throughput/it_per_second", IMAGES_PER_SECOND)
    device = _device(trainer)
    rows: list[tuple[str, str | None]] = [
        ("accuracy", _accuracy(numbers)),
        ("best.ckpt", _best(numbers)),
        ("speed", speed + _doubt(numbers).partition(":")[0]),
        ("waiting for data", show("{:.1%} of the time", "throughput/data_wait_fraction") + _doubt(numbers)),
        ("bottleneck", _bottleneck(numbers, device, done_steps)),
        ("GPU busy", _gpu_busy(numbers, device)),
        ("peak memory", show("{:.1f} GiB", "memory/peak_gib")),
        ("start-up", ", ".join(startup) or "not measured"),
        _duration(numbers, done_steps),
        ("stopped by", stopped_by(trainer)),
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
        return "not measured: this start had no validation"
    top5 = f", acc5 {numbers['val/acc5']:.1%}" if "val/acc5" in numbers else ""
    return f"acc1 {numbers['val/acc1']:.1%}{top5} on validation"


def _best(numbers: dict[str, float]) -> str | None:
    """What best.ckpt is, which evaluate and export take."""
    for name in (key for key in numbers if key.startswith("best/") and key != BEST_EPOCH):
        metric = name.removeprefix("best/")
        score = f"{numbers[name]:.1%}" if "acc" in metric else f"{numbers[name]:.4g}"
        epoch = f", epoch {numbers[BEST_EPOCH]:.0f}" if numbers[BEST_EPOCH] else ""
        return f"{metric} {score}{epoch}"
    return None


def _gpu_busy(numbers: dict[str, float], device: str) -> str | None:
    """Of a run that is too short for `_bottleneck`, which says how busy the device was with the validations."""
    if "bottleneck/busy" in numbers:
        return None
    if (share := numbers.get("rehearsal/accelerator_utilization")) is not None:
        return f"{share:.0%} of {device}{_doubt(numbers).partition(':')[0]}"
    percent = numbers.get("gpu/utilization_percent")
    return None if percent is None else f"{percent:.0f} %{_doubt(numbers).partition(':')[0]}"


def _bottleneck(numbers: dict[str, float], device: str, done_steps: int) -> str:
    group = "bottleneck/"
    shares = {name.removeprefix(group): share for name, share in numbers.items() if name.startswith(group)}
    if not shares:
        is_few = numbers.get("steps", math.inf) - done_steps <= MIN_STEPS
        return f"not measured: it takes more than {MIN_STEPS} steps" if is_few else "not measured"
    if device == "the CPU" and shares["busy"] >= HEALTHY_BUSY:
        return f"the CPU, which trains {shares['busy']:.0%} of the time"
    return sentence(shares, device)


def _doubt(numbers: dict[str, float]) -> str:
    """A warning if few batches were measured, or mostly those that workers had prepared before; else empty."""
    ready, measured = (numbers.get(f"throughput/{name}_batches", math.inf) for name in ("ready", "measured"))
    if is_too_short(numbers):
        return f"; too short to tell: {ready:.0f} of {measured:.0f} batches were ready when measuring began"
    return f"; too short to tell: {measured:.0f} batches were measured" if measured < MIN_STEPS else ""
