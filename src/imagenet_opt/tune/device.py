"""Finds the fastest precision, memory format and compilation on a batch that stays on the device."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product

import torch
from omegaconf import DictConfig

from imagenet_opt.config.build import num_processes, precision_of
from imagenet_opt.measure.stats.rounds import OutOfTime, TurnFailed
from imagenet_opt.tune.device_turns import COMPILE_KEY, Changes, Turns

_ACCELERATION = "callbacks.acceleration"
_FORMATS_SHARE = 0.6
"""Of the time for both comparisons: on a CPU, formats take about ten turns and compilation takes about seven."""
_EAGER = (f"{COMPILE_KEY}=false",)
_GPU_MODES = ("reduce-overhead", "max-autotune")
_WAYS: dict[str, tuple[str | None, bool]] = {
    "off": (None, False),
    "a CUDA graph": (None, True),
    "default": ("default", False),
    "compile and a CUDA graph": ("default", True),
    **{mode: (mode, False) for mode in _GPU_MODES},
}
"""torch.compile's mode (None: not compiled) and cuda_graph; modes with a long search come last."""
AS_IT_IS = "as configured"


@dataclass
class Compute:
    """changes: overrides to keep. rate: images per second with `changes`; None if only measured uncompiled. cut:
    overrides for micro-batches, used in all measurements if the batch did not fit at once."""

    changes: Changes = ()
    rate: float | None = None
    cut: Changes = ()
    notes: list[str] = field(default_factory=list)


def tune_compute(turns: Turns, config: DictConfig, device: torch.device, *, seconds: float, share: float) -> Compute:
    """Compare formats without compilation first, then ways to compile the best of them. seconds: of a short turn.
    Raises TurnFailed if the configuration itself does not run."""
    compute = Compute()
    fixed = _EAGER if "acceleration" in config.callbacks else ()
    formats = {name: (*fixed, *changes) for name, changes in dict(_formats(config, device)).items()}
    climbed = turns.fastest("precision and memory order, not compiled", formats, seconds, _FORMATS_SHARE * share)
    compute.changes = formats[climbed.best][len(fixed) :]
    compute.rate = climbed.rate(climbed.best)
    if not fixed:
        compute.notes.append("there is no callbacks.acceleration: memory order and compilation are not tuned")
        return compute
    ways = {name: (*compute.changes, *changes) for name, changes in _ways(config, device)}
    try:
        climbed = turns.fastest("compilation", ways, seconds, share)
    except (TurnFailed, OutOfTime) as error:
        compute.notes.append(f"compilation is not tuned ({str(error) or 'budget'}): {COMPILE_KEY} stays as configured")
        if config.callbacks.acceleration.compile:
            compute.rate = None
        return compute
    compute.changes, compute.rate = ways[climbed.best], climbed.rate(climbed.best)
    return compute


def _formats(config: DictConfig, device: torch.device) -> Iterator[tuple[str, Changes]]:
    """Formats to compare on this device, by name; the configured one comes first."""
    acceleration = config.callbacks.get("acceleration")

    def effective(precision: str, channels_last: bool, tf32: bool) -> tuple[object, ...]:
        """The settings that the device uses; different words may give the same settings."""
        resolved = precision_of(precision, device)
        return resolved, channels_last, tf32 and device.type == "cuda" and resolved == "32-true"

    configured = acceleration or {"channels_last": False, "tf32": False}
    tried = {effective(config.trainer.precision, configured["channels_last"], configured["tf32"])}
    yield AS_IT_IS, ()
    for precision, channels_last in product(("mixed", "32-true"), (True, False) if acceleration else (False,)):
        if (settings := effective(precision, channels_last, True)) in tried:
            continue
        tried.add(settings)
        changes = [f"trainer.precision={precision}"]
        if acceleration:
            changes += [f"{_ACCELERATION}.channels_last={str(channels_last).lower()}", f"{_ACCELERATION}.tf32=true"]
        order = "channels last" if channels_last else "channels first"
        yield f"{precision}{' with tf32' if settings[2] else ''}, {order}", tuple(changes)


def _ways(config: DictConfig, device: torch.device) -> Iterator[tuple[str, Changes]]:
    """Ways to compile, by name; the configured one comes first."""
    now, on_gpu = config.callbacks.acceleration, device.type == "cuda"
    can_graph = on_gpu and not now.gradient_checkpointing and num_processes(config, device) == (1, 1)
    configured = (now.compile_mode if on_gpu else "default") if now.compile else None
    yield AS_IT_IS, ()
    for name, (mode, graph) in _WAYS.items():
        if (graph and not can_graph) or (mode in _GPU_MODES and not on_gpu):
            continue
        if (mode, graph) == (configured, can_graph and bool(now.cuda_graph)):
            continue
        changes = [f"{COMPILE_KEY}={str(mode is not None).lower()}"]
        changes += [f"{_ACCELERATION}.compile_mode={mode}"] if mode else []
        changes += [f"{_ACCELERATION}.cuda_graph={str(graph).lower()}"] if on_gpu else []
        yield name, tuple(changes)
