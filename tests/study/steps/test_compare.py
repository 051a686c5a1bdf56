"""Which rows need further rounds."""

import math

import pytest

from imagenet_opt.study.steps.compare import undecided_rows
from imagenet_opt.study.steps.plan import Row, Step
from imagenet_opt.study.steps.turn import Speed

ROWS = [Row("start", None, (), ()), Row("step", Step(name="step"), (), (), ("step", "start"))]
BOTH = {"start", "step"}


def turns_of(**gains: float) -> dict[str, list[Speed]]:
    """Eight rounds of 10 s a turn. gains: by measure, ratio of the step to the start, with noise of 3 % a turn."""
    noise = {"start": [1, -1] * 4, "step": [1, 1, -1, -1] * 2}
    seconds = {"alone_seconds": 10.0, "turn_seconds": 10.0}

    def rates(name: str, i: int) -> Speed:
        scale = 100 * math.exp(0.03 * noise[name][i])
        return {measure: scale * (gain if name == "step" else 1.0) for measure, gain in gains.items()}

    return {name: [rates(name, i) | seconds for i in range(8)] for name in noise}


@pytest.mark.parametrize(
    ("gains", "num_rounds", "seconds", "expected"),
    [
        ({"compute": 1.0, "full": 1.04}, 8, 150, {"compute": set(), "full": BOTH}),
        ({"compute": 1.0, "full": 1.04}, 8, 300, {"compute": BOTH, "full": BOTH}),
        ({"compute": 1.0, "full": 1.04}, 4, 150, {"compute": BOTH, "full": BOTH}),
        ({"compute": 1.0, "full": 1.04}, 8, 50, {"compute": BOTH, "full": BOTH}),
        ({"compute": 1.0, "full": 2.0}, 8, 50, {"compute": BOTH, "full": set()}),
    ],
    ids=["only one can be decided", "time for both", "too early to foresee", "none can be decided", "one is decided"],
)
def test_time_goes_to_the_measure_that_it_can_decide(
    gains: dict[str, float], num_rounds: int, seconds: float, expected: dict[str, set[str]]
) -> None:
    assert undecided_rows(ROWS, turns_of(**gains), num_rounds=num_rounds, seconds_left=seconds) == expected
