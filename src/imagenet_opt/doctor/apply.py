"""Tests the remedy of a verdict in full runs, alternately with and without its overrides."""

import math
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from imagenet_opt.config.compose import composed
from imagenet_opt.config.experiment_file import host, how_to_train, write_tuned
from imagenet_opt.display.progress import announced, roughly
from imagenet_opt.doctor.diagnosis import Diagnosis
from imagenet_opt.doctor.rule import Finding
from imagenet_opt.measure.stats.paired_ratios import UNDECIDED, Ratio, must_shrink, pair_ratio, verdict
from imagenet_opt.probe.testbed import Testbed

TURNS = 3
"""Full runs with the overrides, and as many full runs without the overrides."""


@dataclass(frozen=True)
class Trial:
    """Images per second of the full runs without and with the overrides that a rule advises. predicted: gain that the
    rule predicts, if any."""

    rule: str
    overrides: tuple[str, ...]
    before: tuple[float, ...]
    after: tuple[float, ...]
    predicted: float | None

    @property
    def gain(self) -> Ratio:
        """Rate with the overrides divided by the rate without them."""
        return pair_ratio(self.after, self.before)

    @property
    def helps(self) -> bool:
        return verdict(self.gain) == "faster"

    def plain(self) -> dict[str, Any]:
        """As a dict for a JSON file."""
        return asdict(self) | {"gain": self.gain._asdict(), "helps": self.helps}

    def __str__(self) -> str:
        before, after, gain = statistics.median(self.before), statistics.median(self.after), self.gain
        predicted = "" if self.predicted is None else f"; predicted {self.predicted:.2f} times"
        times = f"{gain.ratio:.2f} times ({gain.low:.2f} to {gain.high:.2f} in {len(self.after)} rounds)"
        return f"{before:.0f} -> {after:.0f} images/s, {times}{predicted}: {verdict(gain)}"


def apply(diagnosis: Diagnosis, overrides: tuple[str, ...], *, seconds: float) -> Trial | None:
    """Test the overrides of a rule that fired; if they help, write them as an experiment. None, with a printed reason,
    if there is nothing to test.

    seconds: of each run. Raises ImagenetOptError if a run fails, or if the experiment cannot be written.
    """
    if (remedy := remedy_of(diagnosis)) is None:
        causes = [finding for finding in diagnosis.findings if finding.fired and not finding.environment]
        reason = f"the verdict is {diagnosis.cause}"
        if causes:
            advice = "; ".join(causes[0].commands) or causes[0].remedy
            reason = f"no key of the configuration fixes {causes[0].rule}; {advice}"
        print(f"nothing to apply: {reason}")
        return None
    began = time.perf_counter()
    trial = try_out(overrides, remedy, seconds=seconds, cold=diagnosis.measurements.is_cold)
    print(f"{remedy.rule}, {' '.join(remedy.overrides)}: {trial}")
    if (sentence := how_to_decide(trial, time.perf_counter() - began)) is not None:
        print(sentence, file=sys.stderr)
    if trial.helps:
        file = write_experiment(diagnosis, trial)
        print(how_to_train(file, overrides), file=sys.stderr)
    return trial


def how_to_decide(trial: Trial, seconds: float) -> str | None:
    """A sentence if the trial is undecided. seconds: what it took."""
    if verdict(trial.gain) != UNDECIDED:
        return None
    times = math.ceil(must_shrink(trial.gain) ** 2)
    return (
        f"undecided: if longer runs scatter less, {times} times the --budget would probably decide it; this trial then "
        f"takes {roughly(times * seconds)}"
    )


def remedy_of(diagnosis: Diagnosis) -> Finding | None:
    """The first rule that fired and has overrides: causes in their order, then the environment."""
    fired = [finding for finding in diagnosis.findings if finding.fired and finding.overrides]
    return min(fired, key=lambda finding: finding.environment, default=None)


def try_out(overrides: tuple[str, ...], remedy: Finding, *, seconds: float, cold: bool) -> Trial:
    """Alternate full runs with and without the overrides. cold: whether reads go to storage."""
    testbeds = [Testbed(composed(overrides)), Testbed(composed((*overrides, *remedy.overrides)))]
    rates: tuple[list[float], list[float]] = ([], [])
    # The second testbed reads the files in reverse order, so that no server has them in memory from the first.
    testbeds[1].samples.rows = testbeds[0].samples.rows[::-1]
    with announced(2 * TURNS) as announce:
        for number in range(TURNS):
            for arm in (0, 1) if number % 2 == 0 else (1, 0):
                with_or_without = "with" if arm else "without"
                announce(f"round {number + 1} of {TURNS}, {with_or_without} {' '.join(remedy.overrides)}")
                rates[arm].append(testbeds[arm].full_run(seconds, cold=cold)[1])
    return Trial(remedy.rule, remedy.overrides, tuple(rates[0]), tuple(rates[1]), remedy.gain)


def write_experiment(diagnosis: Diagnosis, trial: Trial) -> Path:
    """Write conf/experiment/tuned_<host>_doctor.yaml, with the measured rates in its header."""
    run = diagnosis.measurements
    simulated = f", simulated {run.simulated}" if run.simulated else ""
    result = f"{run.date}, {host()}{simulated}: {trial.rule}; {trial}"
    return write_tuned("doctor", trial.overrides, (result, run.command))
