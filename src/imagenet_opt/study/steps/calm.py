"""Measures in short cycles, and leaves out the cycles that other programs disturbed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from imagenet_opt.doctor.environment.neighbours import Neighbours

NUM_CYCLES, MOST_CYCLES = 6, 18
"""Cycles that count, and that are measured at most because others disturbed some."""
MOST_OTHERS_PERCENT = 5.0
"""A cycle is left out if other programs use more of the CPUs than in the calmest quarter of the cycles, plus this
number of percentage points."""


@dataclass(frozen=True)
class Cycle:
    """A cycle in which each row had a turn.

    windows: images and seconds by row. is_enough: whether the measurement may end with this cycle. clocks_lowered:
    whether something lowered the GPU's clocks.
    """

    windows: Mapping[str, tuple[float, float]]
    is_enough: bool = True
    clocks_lowered: bool = False


@dataclass(frozen=True)
class Calm:
    """The cycles that count.

    rates: images per second by row; empty without a cycle. others_percent: highest use of the CPUs by other programs in
    a cycle that counts; 100 more if the GPU's clocks were lowered. num_discarded: number of other cycles.
    """

    rates: dict[str, float]
    others_percent: float
    num_discarded: int


def calm_cycles(measure: Callable[[], Cycle | None], *, least_percent: float | None) -> Calm:
    """Measure until NUM_CYCLES calm cycles, or MOST_CYCLES cycles, of which the calmest count.

    measure: measures a cycle. One without windows shows that the cycles so far do not count; None ends the measurement.
    least_percent: what other programs used of the CPUs in calm earlier measurements, None without any. On a machine
    that is always busy, all cycles are equally disturbed.
    """
    cycles, calm = list[tuple[float, Cycle]](), list[tuple[float, Cycle]]()
    neighbours = Neighbours()
    for _ in range(MOST_CYCLES):
        neighbours.start()
        if (cycle := measure()) is None:
            break
        if not cycle.windows:
            cycles, calm = [], []
            continue
        occupancy = neighbours.stop()
        percent = occupancy.others_cpu_percent + occupancy.steal_percent + 100 * cycle.clocks_lowered
        cycles.append((percent, cycle))
        cycles.sort(key=lambda each: each[0])
        calmest = cycles[len(cycles) // 4][0]
        most = min(calmest, calmest if least_percent is None else least_percent) + MOST_OTHERS_PERCENT
        calm = [each for each in cycles if each[0] <= most]
        if len(calm) >= NUM_CYCLES and cycle.is_enough:
            break
    counted = calm if len(calm) >= NUM_CYCLES else cycles[:NUM_CYCLES]
    names = set[str].intersection(*(set(cycle.windows) for _, cycle in counted)) if counted else set()
    rates = {name: _rate([cycle.windows[name] for _, cycle in counted]) for name in names}
    others_percent = max((percent for percent, _ in counted), default=0.0)
    return Calm(rates, others_percent, len(cycles) - len(counted))


def _rate(windows: Sequence[tuple[float, float]]) -> float:
    num_images, seconds = map(sum, zip(*windows, strict=True))
    return num_images / seconds
