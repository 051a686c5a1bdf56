"""Tests the remedy of a verdict in full runs, alternately with and without its overrides."""

from typing import Any

from imagenet_opt.compare.gain import gain_of
from imagenet_opt.compare.rounds import Rounds, in_rounds
from imagenet_opt.config.compose import composed
from imagenet_opt.config.experiment_file import host, how_to_train, write_tuned
from imagenet_opt.display.progress import announced, say
from imagenet_opt.doctor.diagnosis import Diagnosis
from imagenet_opt.doctor.rule import Finding
from imagenet_opt.measure.stats.verdict import UNDECIDED
from imagenet_opt.probe.testbed import Testbed

_ROUNDS = 5
"""Full runs with the overrides, and as many without. If the rate of a run scatters by 5 %, a gain of 1.2 is found in
all of 400 simulated trials with five rounds, and in 59 % of them with three."""
_WITHOUT, _WITH = "without", "with"


def apply(diagnosis: Diagnosis, overrides: tuple[str, ...], *, seconds: float) -> dict[str, Any] | None:
    """Test the overrides of the cause; if they help, write them as conf/experiment/tuned_<host>_doctor.yaml.

    seconds: of each run. Returns `Diagnosis.trial`; None, with a printed reason, if there is nothing to test. Raises
    ImagenetOptError if a run fails, or if the experiment cannot be written.
    """
    remedy = diagnosis.named
    if remedy is None or not remedy.overrides:
        print(f"nothing to apply: the verdict is {diagnosis.cause}, which no key of the configuration fixes")
        return None
    rounds = try_out(overrides, remedy.overrides, seconds=seconds, cold=diagnosis.measurements.is_cold)
    return kept(diagnosis, remedy, rounds, overrides)


def kept(
    diagnosis: Diagnosis, remedy: Finding, rounds: Rounds[float], overrides: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Print the gain of the overrides, and write them if they help. Returns `Diagnosis.trial`, with the images per
    second of each round."""
    gain = gain_of(rounds, _WITH, _WITHOUT)
    predicted = "" if remedy.gain is None else f"; predicted {remedy.gain:.2f} x"
    result = f"{gain.before:,.0f} -> {gain.after:,.0f} images/s, {gain}{predicted}"
    print(f"{remedy.rule}, {' '.join(remedy.overrides)}: {result}")
    if gain.verdict == UNDECIDED:
        say(f"what is {UNDECIDED} is not kept: raise --budget, which makes the {2 * _ROUNDS} runs longer")
    if helps := gain.verdict == "faster":
        run = diagnosis.measurements
        simulated = f", simulated {run.simulated}" if run.simulated else ""
        header = f"{run.date}, {host()}{simulated}: {remedy.rule}; {result}"
        say(how_to_train(write_tuned("doctor", remedy.overrides, (header, run.command)), overrides))
    return {
        "rule": remedy.rule,
        "overrides": remedy.overrides,
        "before": rounds.results[_WITHOUT],
        "after": rounds.results[_WITH],
        "predicted": remedy.gain,
        "gain": gain.ratio._asdict(),
        "helps": helps,
    }


def try_out(overrides: tuple[str, ...], changes: tuple[str, ...], *, seconds: float, cold: bool) -> Rounds[float]:
    """Images per second of full runs with and without the changes. cold: whether reads go to storage."""
    testbeds = {_WITHOUT: Testbed(composed(overrides)), _WITH: Testbed(composed((*overrides, *changes)))}
    # The second testbed reads the files in reverse order, so that no server has them in memory from the first.
    testbeds[_WITH].samples.rows = testbeds[_WITHOUT].samples.rows[::-1]
    with announced(2 * _ROUNDS) as announce:

        def rate(name: str, number: int) -> float:
            announce(f"round {number + 1} of {_ROUNDS}, {name} {' '.join(changes)}")
            return testbeds[name].full_run(seconds, cold=cold)[1]

        return in_rounds(testbeds, rate, range(_ROUNDS))
