"""Precision, memory order and compilation: which is the fastest on a batch that stays on the device."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product

import torch
from omegaconf import DictConfig

from imagenet_opt.cli.build import precision_of
from imagenet_opt.cli.run_size import num_processes
from imagenet_opt.cli.tune_turns import COMPILE_KEY, Changes, Turns
from imagenet_opt.measure.deadline import OutOfTime
from imagenet_opt.measure.interleave import TurnFailed

_ACCELERATION = "callbacks.acceleration"
_EAGER = (f"{COMPILE_KEY}=false",)
_MODES = ("reduce-overhead", "max-autotune")
"""Of torch.compile, beside default; for GPUs only."""
AS_IT_IS = "as configured"


@dataclass
class Compute:
    """changes: what to keep. rate: images per second with them, None where that was measured uncompiled only.

    cut: the micro-batches that all was measured with, where the batch did not fit at once.
    """

    changes: Changes = ()
    rate: float | None = None
    cut: Changes = ()
    notes: list[str] = field(default_factory=list)


def tune_compute(turns: Turns, config: DictConfig, device: torch.device, *, seconds: float, share: float) -> Compute:
    """Formats first, uncompiled, then the ways to compile the best of them. seconds: of a short turn.

    Raises TurnFailed where the configuration itself does not run.
    """
    found = Compute()
    fixed = _EAGER if "acceleration" in config.callbacks else ()
    formats = {name: (*fixed, *changes) for name, changes in dict(_formats(config, device)).items()}
    contest = turns.contest("precision and memory order, not compiled", formats, seconds, 0.5 * share)
    found.changes = formats[contest.winner][len(fixed) :]
    found.rate = contest.rate(contest.winner)
    if not fixed:
        found.notes.append("callbacks.acceleration is not there: memory order and compilation are not tried")
        return found
    ways = {name: (*found.changes, *changes) for name, changes in _ways(config, device)}
    try:
        contest = turns.contest("compilation", ways, seconds, share)
    except (TurnFailed, OutOfTime) as error:
        reason = str(error) or "budget"
        found.notes.append(f"compilation is not tuned, as it is configured: {reason}; {COMPILE_KEY} stays as it is")
        if config.callbacks.acceleration.compile:
            found.rate = None
        return found
    found.changes, found.rate = ways[contest.winner], contest.rate(contest.winner)
    return found


def _formats(config: DictConfig, device: torch.device) -> Iterator[tuple[str, Changes]]:
    """What differs on this device, by name; as configured comes first."""
    acceleration = config.callbacks.get("acceleration")

    def meaning(precision: str, channels_last: bool, tf32: bool) -> tuple[object, ...]:
        words = precision_of(precision, device)
        return words, channels_last, tf32 and device.type == "cuda" and words == "32-true"

    known = acceleration or {"channels_last": False, "tf32": False}
    seen = {meaning(config.trainer.precision, known["channels_last"], known["tf32"])}
    yield AS_IT_IS, ()
    for precision, channels_last in product(("mixed", "32-true"), (True, False) if acceleration else (False,)):
        if (what := meaning(precision, channels_last, True)) in seen:
            continue
        seen.add(what)
        changes = [f"trainer.precision={precision}"]
        if acceleration:
            changes += [f"{_ACCELERATION}.channels_last={str(channels_last).lower()}", f"{_ACCELERATION}.tf32=true"]
        order = "channels last" if channels_last else "channels first"
        yield f"{precision}{' with tf32' if what[2] else ''}, {order}", tuple(changes)


def _ways(config: DictConfig, device: torch.device) -> Iterator[tuple[str, Changes]]:
    """As configured comes first; cheap ones before those that search for long."""
    now = config.callbacks.acceleration
    on_gpu = device.type == "cuda"
    plain = (f"{_ACCELERATION}.cuda_graph=false",) if on_gpu else ()
    yield AS_IT_IS, ()
    mode = now.compile_mode if on_gpu else "default"
    current = "cuda_graph" if on_gpu and now.cuda_graph else mode if now.compile else "off"
    ways = {"off": (f"{COMPILE_KEY}=false", *plain)}
    if on_gpu and not now.gradient_checkpointing and num_processes(config, device) == (1, 1):
        ways["cuda_graph"] = (f"{COMPILE_KEY}=false", f"{_ACCELERATION}.cuda_graph=true")
    for name in ("default", *(_MODES if on_gpu else ())):
        ways[name] = (f"{COMPILE_KEY}=true", f"{_ACCELERATION}.compile_mode={name}", *plain)
    yield from ((name, changes) for name, changes in ways.items() if name != current)
