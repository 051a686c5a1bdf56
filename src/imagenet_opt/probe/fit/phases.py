"""Splits the time of the main process in a step by Lightning's actions."""

from collections import defaultdict
from collections.abc import Callable

from lightning.pytorch import Trainer

from imagenet_opt.run.hook_timer import CALLBACK, FETCH, LOGGER, HookTimer, saves


class Phases:
    """Seconds of each phase since `begin`."""

    def __init__(self, clock: HookTimer) -> None:
        self._clock = clock
        self._before: dict[str, float] = {}

    def begin(self) -> None:
        self._before = dict(self._clock.own_seconds)

    def seconds(self, trainer: Trainer) -> dict[str, float]:
        is_save, phases = saves(trainer), defaultdict[str, float](float)
        for action, seconds in self._clock.own_seconds.items():
            phases[phase_of(action, is_save)] += seconds - self._before.get(action, 0.0)
        return dict(phases)


def phase_of(action: str, is_save: Callable[[str], bool]) -> str:
    """Name of the phase that an action belongs to. is_save: see `hook_timer.saves`."""
    if action == FETCH:
        return "fetch"
    if is_save(action):
        return "checkpoint"
    if action.startswith(LOGGER):
        return "logging"
    if not action.startswith(CALLBACK):
        return "step"
    callback = action.removeprefix(CALLBACK).partition("{")[0].partition(".")[0]
    return "device" if callback in ("Rehearsal", "FitTimer") else f"callback {callback}"
