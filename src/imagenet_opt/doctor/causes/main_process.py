"""Causes in the training process: waits for the GPU, logging, checkpoints, callbacks."""

import shlex
from dataclasses import replace

from imagenet_opt.doctor.diagnosis import Finding
from imagenet_opt.doctor.evidence import BUSY_ENOUGH, Evidence
from imagenet_opt.doctor.gains import gpu_gain, stages_gain
from imagenet_opt.doctor.remedies import callbacks_like, data_place, saves, without_waiting
from imagenet_opt.doctor.symptoms import ORDINARY_WAITS, holds_up, is_starved

_OWN_CHECKPOINT = "callbacks.checkpoint"


def host_sync(evidence: Evidence) -> Finding:
    waits, places = evidence.facts.waits_per_step or 0.0, evidence.facts.waits_places or ""
    fired = waits >= ORDINARY_WAITS and evidence.busy_share < BUSY_ENOUGH and not is_starved(evidence)
    text = f"{waits:.1f} waits for the GPU in an ordinary step" + (f": {places}" if places else "")
    gain = None
    if fired:
        # If the network itself waits, the GPU is idle in the run with a resident batch too.
        is_outside = evidence.busy_alone_share >= BUSY_ENOUGH
        gain = stages_gain(evidence) if is_outside else gpu_gain(evidence, evidence.compute_rate)
    remedy = "keep the value on the GPU (tensor.detach()) and read it at logging steps only"
    return Finding("host_sync", fired, text, remedy, commands=without_waiting(places), gain=gain)


def slow_logging(evidence: Evidence) -> Finding:
    less_often = f"trainer.log_every_n_steps={10 * (evidence.facts.log_every_n_steps or 20)}"
    return _stall(evidence, "slow_logging", "logging", "log less often, or to a faster disk", (less_often,))


def checkpoint_stall(evidence: Evidence) -> Finding:
    checkpoints = callbacks_like(evidence, "Checkpoint").items()
    others = [f"{key} ({name})" for key, name in checkpoints if key != _OWN_CHECKPOINT]
    remedy = f"save less often, or to a faster disk: {' and '.join(others) or _OWN_CHECKPOINT}"
    if overrides := saves(evidence):
        remedy = "save checkpoints by time (checkpoint.every_minutes), or to a faster disk"
    return _stall(evidence, "checkpoint_stall", "checkpoint", remedy, overrides)


def slow_callback(evidence: Evidence) -> Finding:
    phases = evidence.measurements.phases
    callbacks = [phase for phase in phases if phase.startswith("callback ")]
    slowest = max(callbacks, key=lambda phase: phases[phase], default="callback")
    name = slowest.removeprefix("callback ")
    keys = [key for key, class_name in callbacks_like(evidence, name).items() if class_name == name]
    command = f"grep -rn 'class {name}' --include=*.py ."
    if keys:
        without = (shlex.quote(f"~{key}") for key in keys)
        command = " ".join(["python train.py", data_place(evidence).words, *without])
    finding = _stall(evidence, "slow_callback", slowest, f"call {name} less often, or remove it")
    return replace(finding, commands=(command,))


def _stall(evidence: Evidence, rule: str, phase: str, remedy: str, overrides: tuple[str, ...] = ()) -> Finding:
    fired = holds_up(evidence, phase)
    seconds = evidence.measurements.phases.get(phase, 0.0), evidence.step_seconds, evidence.idle_seconds
    phase_ms, step_ms, idle_ms = (1000 * value for value in seconds)
    text = (
        f"{phase} takes {phase_ms:.1f} ms of a step of {step_ms:.0f} ms, in which the GPU is idle for {idle_ms:.0f} ms"
    )
    return Finding(rule, fired, text, remedy, overrides, gain=stages_gain(evidence) if fired else None)
