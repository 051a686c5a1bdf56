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

from imagenet_opt.measure.stats.block_ratios import UNDECIDED, verdict
from imagenet_opt.measure.stats.sequential import is_look, sequential_ratios
from imagenet_opt.study.steps.compare import MEASURES, SECONDS, rates_of

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
    rng: np.random.Generator, noises: dict[str, NDArray[np.float64]], num_rows: int, effect: float, turns: float
) -> list[set[str]]:
    """Of each row but the first, in a simulated study with time for so many turns of each measure; the first of them
    has the effect."""
    names = [str(i) for i in range(num_rows)]
    pairs = [(name, "0") for name in names[1:]]
    claimed: list[set[str]] = [set() for _ in pairs]
    for noise in noises.values():
        rates: dict[str, list[float]] = {name: [] for name in names}
        active, num_rounds, left = set(names), 0, turns
        while active and (num_rounds < 2 or left >= len(active)):
            for name in active:
                rates[name].append(float(np.exp(rng.choice(noise)) * (effect if name == "1" else 1.0)))
            left, num_rounds = left - len(active), num_rounds + 1
            if is_look(num_rounds):
                latest = _verdicts(rates, pairs, len(noises), is_over=False)
                active = {name for pair, one in zip(pairs, latest, strict=True) if one == UNDECIDED for name in pair}
        for row, one in zip(claimed, _verdicts(rates, pairs, len(noises), is_over=True), strict=True):
            row.add(one)
    return claimed


def _verdicts(
    rates: dict[str, list[float]], pairs: list[tuple[str, str]], num_measures: int, *, is_over: bool
) -> list[str]:
    ratios = sequential_ratios(rates, pairs, num_comparisons=num_measures * len(pairs), is_over=is_over)
    return [UNDECIDED if ratio is None else verdict(ratio) for ratio in ratios]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path, help="study.json of a study of steps with two rounds or more")
    parser.add_argument("--minutes", type=float, nargs="+", default=[5, 10, 30])
    options = parser.parse_args()
    rows = [row for row in json.loads(options.study.read_text())["tables"][0]["data"]["rows"] if row.get("speeds")]
    noises = {measure: noise_of(rows, measure) for measure in MEASURES}
    seconds = {
        measure: [speed[key] for row in rows for speed in row["speeds"] if key in speed]
        for measure, key in SECONDS.items()
    }
    turn_seconds = sum(map(median, seconds.values()))
    spread = ", ".join(f"{name} {100 * noises[measure].std():.1f} %" for measure, name in MEASURES.items())
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
            studies = [
                verdicts(rng, noises, len(rows), effect, 60 * minutes / turn_seconds) for _ in range(_NUM_STUDIES)
            ]
            cells.append(sum("faster" in study[0] for study in studies) / _NUM_STUDIES)
            others = [study[1:] if effect > 1 else study for study in studies]
            false += sum(any({"faster", "slower"} & row for row in study) for study in others)
            num += len(studies)
        shown = " | ".join(f"{100 * cell:.0f} %" for cell in cells[1:])
        print(f"| {minutes:g} | {shown} | {100 * false / num:.1f} % of {num} studies |")


if __name__ == "__main__":
    main()
