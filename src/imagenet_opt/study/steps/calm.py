"""Measures in short cycles, and leaves out the cycles that other programs disturbed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from imagenet_opt.doctor.environment.neighbours import Neighbours

NUM_CYCLES = 6
"""Cycles that count, at least."""
MOST_TIMES = 3
"""If others disturb many cycles, at most this many times as many are measured as must count."""
MOST_OTHERS_PERCENT = 5.0
"""A cycle is left out if other programs use more of the CPUs than in the calmest quarter of the cycles, plus this
number of percentage points."""
CLOCKS_LOWERED = 100.0
"""Counts as so many more percent, because a cycle with lowered clocks is left out if the others had full clocks."""


@dataclass(frozen=True)
class Cycle:
    """A cycle in which each row had a turn.

    windows: images and seconds by row. is_enough: whether the measurement may end with this cycle. clocks_lowered:
    whether something lowered the GPU's clocks.
    """

    windows: Mapping[str, tuple[float, float]]
    is_enough: bool = True
    clocks_lowered: bool = False

    @property
    def seconds(self) -> float:
        """Seconds of a row on average."""
        return fmean(seconds for _, seconds in self.windows.values())


@dataclass(frozen=True)
class Calm:
    """The cycles that count.

    rates: images per second by row; empty without a cycle. others_percent: highest use of the CPUs by other programs in
    a cycle that counts; CLOCKS_LOWERED more if the GPU's clocks were lowered. num_discarded: number of other cycles.
    """

    rates: dict[str, float]
    others_percent: float
    num_discarded: int


def calm_cycles(measure: Callable[[], Cycle | None], *, seconds: float, least_percent: float | None) -> Calm:
    """Measure until enough cycles are calm, or MOST_TIMES as many are measured, of which the calmest count.

    At least NUM_CYCLES must count, and at least `seconds` divided by a row's time in the shortest cycle. measure:
    measures a cycle. One without windows shows that the cycles so far do not count; None ends the measurement.
    least_percent: what other programs used of the CPUs in calm earlier measurements, None without any. On a machine
    that is always busy, all cycles are equally disturbed.
    """
    cycles, calm, enough = list[tuple[float, Cycle]](), list[tuple[float, Cycle]](), NUM_CYCLES
    neighbours = Neighbours()
    while len(cycles) < MOST_TIMES * enough:
        neighbours.start()
        if (cycle := measure()) is None:
            break
        if not cycle.windows:
            cycles, calm = [], []
            continue
        occupancy = neighbours.stop()
        percent = occupancy.others_cpu_percent + occupancy.steal_percent + CLOCKS_LOWERED * cycle.clocks_lowered
        cycles.append((percent, cycle))
        cycles.sort(key=lambda each: each[0])
        enough = max(NUM_CYCLES, round(seconds / min(cycle.seconds for _, cycle in cycles)))
        calmest = cycles[len(cycles) // 4][0]
        most = min(calmest, calmest if least_percent is None else least_percent) + MOST_OTHERS_PERCENT
        calm = [each for each in cycles if each[0] <= most]
        if len(calm) >= enough and cycle.is_enough:
            break
    counted = calm if len(calm) >= enough else cycles[:enough]
    names = set[str].intersection(*(set(cycle.windows) for _, cycle in counted)) if counted else set()
    rates = {name: _rate([cycle.windows[name] for _, cycle in counted]) for name in names}
    others_percent = max((percent for percent, _ in counted), default=0.0)
    return Calm(rates, others_percent, len(cycles) - len(counted))


def _rate(windows: Sequence[tuple[float, float]]) -> float:
    num_images, seconds = map(sum, zip(*windows, strict=True))
    return num_images / seconds
