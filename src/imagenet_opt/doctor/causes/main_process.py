"""Causes in the training process: work and waits besides computing."""

import shlex
from dataclasses import replace

from imagenet_opt.doctor.diagnosis import Finding
from imagenet_opt.doctor.evidence import BUSY_ENOUGH, Evidence
from imagenet_opt.doctor.gains import gpu_gain, stall_gain
from imagenet_opt.doctor.remedies import callbacks_like, data_place, saves, without_waiting
from imagenet_opt.doctor.symptoms import ORDINARY_WAITS, holds_up, is_starved

_OWN_CHECKPOINT = "callbacks.checkpoint"


def host_sync(evidence: Evidence) -> Finding:
    per_step = evidence.facts.waits_per_step or 0.0
    where = evidence.facts.waits_places or "nowhere"
    fired = per_step >= ORDINARY_WAITS and evidence.busy_share < BUSY_ENOUGH and not is_starved(evidence)
    return Finding(
        "host_sync",
        fired,
        f"{per_step:.1f} waits for the GPU in an ordinary step: {where}",
        "keep the value on the GPU (tensor.detach()) and read it at logging steps only",
        commands=without_waiting(where),
        gain=_without_sync(evidence) if fired else None,
    )


def slow_logging(evidence: Evidence) -> Finding:
    return _stall(
        evidence,
        "slow_logging",
        "logging",
        "log less often, or to a faster disk",
        (f"trainer.log_every_n_steps={10 * (evidence.facts.log_every_n_steps or 20)}",),
    )


def checkpoint_stall(evidence: Evidence) -> Finding:
    others = [
        f"{key} ({name})" for key, name in callbacks_like(evidence, "Checkpoint").items() if key != _OWN_CHECKPOINT
    ]
    if overrides := saves(evidence):
        remedy = "save checkpoints by time (checkpoint.every_minutes), to a faster disk"
    else:
        remedy = f"let {' and '.join(others) or _OWN_CHECKPOINT} save less often, or to a faster disk"
    return _stall(evidence, "checkpoint_stall", "checkpoint", remedy, overrides)


def slow_callback(evidence: Evidence) -> Finding:
    callbacks = {
        name: seconds for name, seconds in evidence.measurements.phases.items() if name.startswith("callback ")
    }
    slowest = max(callbacks, key=lambda name: callbacks[name], default="callback")
    name = slowest.removeprefix("callback ")
    finding = _stall(evidence, "slow_callback", slowest, f"call {name} less often, or remove it")
    keys = [key for key, called in callbacks_like(evidence, name).items() if called == name]
    without = " ".join(["python train.py", data_place(evidence).words, *(shlex.quote(f"~{key}") for key in keys)])
    return replace(finding, commands=(without if keys else f"grep -rn 'class {name}' --include=*.py .",))


def _stall(evidence: Evidence, rule: str, phase: str, remedy: str, overrides: tuple[str, ...] = ()) -> Finding:
    seconds = evidence.measurements.phases.get(phase, 0.0)
    fired = holds_up(evidence, phase)
    step, idle = 1000 * evidence.step_seconds, 1000 * evidence.idle_seconds
    sentence = (
        f"{phase} takes {1000 * seconds:.1f} ms of a step of {step:.0f} ms, in which the GPU is idle for {idle:.0f} ms"
    )
    return Finding(rule, fired, sentence, remedy, overrides, gain=stall_gain(evidence) if fired else None)


def _without_sync(evidence: Evidence) -> float:
    """Gain without waits. A network that waits by itself also waits when alone; then only the device's own seconds
    show its rate."""
    return (
        stall_gain(evidence) if evidence.busy_alone_share >= BUSY_ENOUGH else gpu_gain(evidence, evidence.compute_rate)
    )
