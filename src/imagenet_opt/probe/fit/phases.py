"""Splits the time of the main process in a step by Lightning's actions."""

from collections import Counter
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
        is_save, phases = saves(trainer), Counter[str]()
        for action, seconds in self._clock.own_seconds.items():
            phases[phase_of(action, is_save)] += seconds - self._before.get(action, 0.0)  # type: ignore[assignment]
        return dict(phases)


def phase_of(action: str, is_save: Callable[[str], bool]) -> str:
    """Name of the phase that an action belongs to. is_save: see `hook_timer.saves`."""
    callback = action.removeprefix(CALLBACK).partition("{")[0].partition(".")[0] if action.startswith(CALLBACK) else ""
    if action == FETCH:
        return "fetch"
    if is_save(action):
        return "checkpoint"
    if action.startswith(LOGGER):
        return "logging"
    if callback in ("Rehearsal", "FitTimer"):
        return "device"
    return f"callback {callback}" if callback else "step"
