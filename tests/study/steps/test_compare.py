"""Which rows need further rounds."""

import math

import pytest

from imagenet_opt.study.steps.compare import undecided_rows
from imagenet_opt.study.steps.plan import Row, Step
from imagenet_opt.study.steps.turn import Speed

NAMES = ("step", "second", "third", "fourth")
ROWS = [Row("start", None, (), ()), *(Row(name, Step(name=name), (), (), (name, "start")) for name in NAMES)]


def turns_of(num_steps: int = 1, **gains: float) -> dict[str, list[Speed]]:
    """Eight rounds of 10 s a turn. gains: by measure, ratio of each step to the start, with noise of 3 % a turn."""
    noise = {"start": [1, -1] * 4} | dict.fromkeys(NAMES[:num_steps], [1, 1, -1, -1] * 2)
    seconds = {"alone_seconds": 10.0, "turn_seconds": 10.0}

    def rates(name: str, i: int) -> Speed:
        scale = 100 * math.exp(0.03 * noise[name][i])
        return {measure: scale * (gain if name != "start" else 1.0) for measure, gain in gains.items()}

    return {name: [rates(name, i) | seconds for i in range(8)] for name in noise}


@pytest.mark.parametrize(
    ("num_steps", "gains", "num_rounds", "seconds", "given_up"),
    [
        (1, {"compute": 1.0, "full": 1.04}, 8, 75, {"compute"}),
        (1, {"compute": 1.0, "full": 1.04}, 8, 300, set()),
        (1, {"compute": 1.0, "full": 1.04}, 4, 75, set()),
        (1, {"compute": 1.0, "full": 1.04}, 8, 20, set()),
        (1, {"compute": 1.0, "full": 2.0}, 8, 50, {"full"}),
        (4, {"compute": 1.0, "full": 1.04}, 8, 50, set()),
        (4, {"compute": 1.0, "full": 1.04}, 8, 20, {"compute"}),
    ],
    ids=[
        "only one can be decided",
        "time for both",
        "too early to foresee",
        "none can be decided",
        "one is decided",
        "four steps, time for a round",
        "four steps, time for two turns",
    ],
)
def test_time_goes_to_the_measure_that_it_can_decide(
    num_steps: int, gains: dict[str, float], num_rounds: int, seconds: float, given_up: set[str]
) -> None:
    turns = turns_of(num_steps, **gains)
    names = undecided_rows(ROWS, turns, num_rounds=num_rounds, seconds_left=seconds)
    assert names == {measure: set() if measure in given_up else set(turns) for measure in gains}
