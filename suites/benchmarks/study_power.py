"""What a study of steps can decide: simulated studies with the noise of real ones.

    python -m suites.benchmarks.study_power suites/benchmarks/recorded_noise/ten_rows_quiet_*.json

Each simulated study has as many rows as the real one, each compared with the first. One row has an effect, the others
have none. The noise is what remains of log images/s of one real study after its rows and rounds are taken out. It is
drawn by whole rounds, whose values are given to the rows by chance, so that a round in which rows differ much stays
one. The table says how often the effect was found, how many of the studies with equal rows called some of them
different, and in how many studies all intervals contain the true ratio.

recorded_noise/ has real studies, reduced to what is read here.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from imagenet_opt.measure.stats.sequential import is_look
from imagenet_opt.study.steps.compare import (
    MEASURES,
    SECONDS,
    Worths,
    compare,
    rates_of,
    round_seconds,
    undecided_rows,
)
from imagenet_opt.study.steps.losses import Losses
from imagenet_opt.study.steps.plan import Row, Step
from imagenet_opt.study.steps.speeds import LEAST_ROUNDS
from imagenet_opt.study.steps.turn import Speeds

_EFFECTS = (1.0, 1.02, 1.03, 1.05, 1.10, 1.20, 1.50)
_NUM_STUDIES = 1000


class Noise:
    """Noise of log images/s, and the seconds of a row in a round, by measure, of a real study."""

    def __init__(self, study: Path) -> None:
        rows = [row for row in json.loads(study.read_text())["tables"][0]["data"]["rows"] if row.get("speeds")]
        self.num_rows = len(rows)
        self.residuals = {measure: _residuals(rows, measure) for measure in MEASURES}
        self.seconds = {
            measure: median(speed[key] for row in rows for speed in row["speeds"] if key in speed)
            for measure, key in SECONDS.items()
        }

    def draw(self, rng: np.random.Generator, measure: str) -> NDArray[np.float64]:
        """The residuals of a round, in random order, with a little normal noise (Silverman's width) at the same
        variance: a smoothed bootstrap of blocks.

        Without the noise, the few residuals of a short study of two rows repeat, and equal differences look exact.
        """
        values, normals = rng.choice(self.residuals[measure], axis=1), rng.normal(size=self.num_rows)
        width = 1.06 * self.residuals[measure].size ** -0.2
        smoothed = values + width * _deviation(values) * (normals - normals.mean())
        return rng.permutation(smoothed) / np.sqrt(1 + width**2)  # type: ignore[no-any-return]


def _residuals(rows: Sequence[dict[str, object]], measure: str) -> NDArray[np.float64]:
    """A row for each row, of the rounds that all rows have. The differences of rows have their variance."""
    rates: list[list[float]] = [rates_of(row["speeds"], measure) for row in rows]  # type: ignore[arg-type]
    num = min(map(len, rates))
    logs = np.log([row[:num] for row in rates])
    residuals = logs - logs.mean(0) - logs.mean(1, keepdims=True) + logs.mean()
    return residuals * np.sqrt(num / (num - 1))  # type: ignore[no-any-return]


def _deviation(residuals: NDArray[np.float64]) -> float:
    """Standard deviation of a single value, from residuals that add up to zero in each round."""
    num = len(residuals)
    return float(residuals.std() * np.sqrt(num / (num - 1)))


def simulated(rng: np.random.Generator, noise: Noise, effect: float, budget_seconds: float) -> list[Worths]:
    """Gains of each row but the first, in a simulated study; the first of them has the effect."""
    steps = [Row(str(i), Step(name=str(i)), (), (), (str(i), "0")) for i in range(1, noise.num_rows)]
    speeds = Speeds([Row("0", None, (), ()), *steps], in_race=True)
    speeds.turns = {row.name: [] for row in speeds.rows}
    names, number, left = {measure: set(speeds.turns) for measure in MEASURES}, 0, budget_seconds
    while any(names.values()) and (number < LEAST_ROUNDS or round_seconds(speeds.turns, names) <= left):
        drawn = {measure: noise.draw(rng, measure) for measure in MEASURES}
        for place, (name, turns) in enumerate(speeds.turns.items()):
            turns.append({})
            for measure in (measure for measure, some in names.items() if name in some):
                rate = np.exp(drawn[measure][place]) * (effect if name == "1" else 1.0)
                turns[-1] |= {measure: rate, SECONDS[measure]: noise.seconds[measure]}
                left -= noise.seconds[measure]
        number += 1
        if is_look(number):
            names = undecided_rows(speeds.rows, speeds.turns, num_rounds=number, seconds_left=left)
    return [result.worth for result in compare(speeds, Losses())[1:]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "study",
        type=Path,
        nargs="+",
        help="study.json of a study of steps; if there are several, with equally many rows, each simulated study "
        "has the noise of one",
    )
    parser.add_argument("--minutes", type=float, nargs="+", default=[5, 10, 30])
    options = parser.parse_args()
    noises = [Noise(study) for study in options.study]
    if len({noise.num_rows for noise in noises}) > 1:
        parser.error("the studies have different numbers of rows")
    for measure, name in MEASURES.items():
        spreads = sorted(100 * _deviation(noise.residuals[measure]) for noise in noises)
        seconds = sorted(noise.seconds[measure] for noise in noises)
        shown = f"{spreads[0]:.1f} to {spreads[-1]:.1f} %, {seconds[0]:.1f} to {seconds[-1]:.1f} s a row and round"
        print(f"{noises[0].num_rows} rows, {name}: noise {shown}")
    print(f"{_NUM_STUDIES} studies a cell\n")
    found = " | ".join(f"{100 * effect - 100:.0f} % found" for effect in _EFFECTS[1:])
    print(f"| minutes | {found} | false claims | all intervals true |")
    print("|---" * (len(_EFFECTS) + 2) + "|")
    rng = np.random.default_rng(0)
    for minutes in options.minutes:
        cells, false, true = [], [], []
        for effect in _EFFECTS:
            picks = rng.integers(len(noises), size=_NUM_STUDIES)
            studies = [simulated(rng, noises[pick], effect, 60 * minutes) for pick in picks]
            cells.append(np.mean(["faster" in study[0].verdicts for study in studies]))
            equal = [study[effect > 1 :] for study in studies]
            false += [any({"faster", "slower"} & row.verdicts for row in study) for study in equal if study]
            true += [_are_true(study, effect) for study in studies]
        shown = " | ".join(f"{100 * cell:.0f} %" for cell in cells[1:])
        print(f"| {minutes:g} | {shown} | {100 * np.mean(false):.1f} % of {len(false)} | {100 * np.mean(true):.1f} % |")


def _are_true(study: Sequence[Worths], effect: float) -> bool:
    """Whether all intervals contain the true ratios: the effect in the first row, 1 in the others."""
    true = [effect, *(1.0 for _ in study[1:])]
    return all(
        worth.ratio.low <= ratio <= worth.ratio.high
        for worths, ratio in zip(study, true, strict=True)
        for worth in worths.values()
    )


if __name__ == "__main__":
    main()
