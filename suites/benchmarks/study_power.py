"""What a study of steps can decide: simulated studies with the noise of a real one.

    python -m suites.benchmarks.study_power runs/study_ladder/study.json --minutes 5 10 30

Each simulated study has as many rows as the real one, each compared with the first. One row has an effect, the others
have none. A turn's noise is drawn from the residuals of the real study, after its rows and rounds are taken out. The
table says how often the effect was found, and how often a study claimed a difference that does not exist.
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
_NUM_STUDIES = 200


def noise_of(rows: Sequence[dict[str, object]], measure: str) -> NDArray[np.float64]:
    """Residuals of log images/s of the rows and rounds that all rows have, with the variance of single turns."""
    rates: list[list[float]] = [rates_of(row["speeds"], measure) for row in rows]  # type: ignore[arg-type]
    num = min(map(len, rates))
    logs = np.log([row[:num] for row in rates])
    residuals = logs - logs.mean(0) - logs.mean(1, keepdims=True) + logs.mean()
    return (residuals * np.sqrt(logs.size / ((num - 1) * (len(rows) - 1)))).ravel()  # type: ignore[no-any-return]


def verdicts(
    rng: np.random.Generator,
    noises: dict[str, NDArray[np.float64]],
    seconds: dict[str, float],
    num_rows: int,
    effect: float,
    budget_seconds: float,
) -> list[set[str]]:
    """Of each row but the first, in a simulated study; the first of them has the effect. seconds: of a turn, by
    measure."""
    steps = [Row(str(i), Step(name=str(i)), (), (), (str(i), "0")) for i in range(1, num_rows)]
    speeds = Speeds([Row("0", None, (), ()), *steps], in_race=True)
    speeds.turns = {row.name: [] for row in speeds.rows}
    names, number, left = {measure: set(speeds.turns) for measure in MEASURES}, 0, budget_seconds
    while any(names.values()) and (number < LEAST_ROUNDS or round_seconds(speeds.turns, names) <= left):
        for name, turns in speeds.turns.items():
            turns.append({})
            for measure in (measure for measure, some in names.items() if name in some):
                rate = float(np.exp(rng.choice(noises[measure]))) * (effect if name == "1" else 1.0)
                turns[-1] |= {measure: rate, SECONDS[measure]: seconds[measure]}
                left -= seconds[measure]
        number += 1
        if is_look(number):
            names = undecided_rows(speeds.rows, speeds.turns, num_rounds=number, seconds_left=left)
    return [result.worth.verdicts for result in compare(speeds, Losses())[1:]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path, help="study.json of a study of steps with two rounds or more")
    parser.add_argument("--minutes", type=float, nargs="+", default=[5, 10, 30])
    options = parser.parse_args()
    rows = [row for row in json.loads(options.study.read_text())["tables"][0]["data"]["rows"] if row.get("speeds")]
    noises = {measure: noise_of(rows, measure) for measure in MEASURES}
    seconds = {
        measure: median(speed[key] for row in rows for speed in row["speeds"] if key in speed)
        for measure, key in SECONDS.items()
    }
    spread = ", ".join(f"{name} {100 * noises[measure].std():.1f} %" for measure, name in MEASURES.items())
    turn_seconds = sum(seconds.values())
    print(
        f"{len(rows)} rows, turns of {turn_seconds:.1f} s, noise of a turn: {spread}; {_NUM_STUDIES} studies a cell\n"
    )
    print(
        "| minutes | "
        + " | ".join(f"{100 * effect - 100:.0f} % found" for effect in _EFFECTS[1:])
        + " | false claims |"
    )
    print("|---" * (len(_EFFECTS) + 1) + "|")
    rng = np.random.default_rng(0)
    for minutes in options.minutes:
        cells, false, num = [], 0, 0
        for effect in _EFFECTS:
            studies = [verdicts(rng, noises, seconds, len(rows), effect, 60 * minutes) for _ in range(_NUM_STUDIES)]
            cells.append(sum("faster" in study[0] for study in studies) / _NUM_STUDIES)
            others = [study[1:] if effect > 1 else study for study in studies]
            false += sum(any({"faster", "slower"} & row for row in study) for study in others)
            num += len(studies)
        shown = " | ".join(f"{100 * cell:.0f} %" for cell in cells[1:])
        print(f"| {minutes:g} | {shown} | {100 * false / num:.1f} % of {num} studies |")


if __name__ == "__main__":
    main()
