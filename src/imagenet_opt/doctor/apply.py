"""Tests the remedy of a verdict in full runs, alternately with and without its overrides."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagenet_opt.compare.gain import Gain, gain_of
from imagenet_opt.compare.rounds import Rounds, in_rounds
from imagenet_opt.config.compose import composed
from imagenet_opt.config.experiment_file import host, how_to_train, write_tuned
from imagenet_opt.display.progress import announced, say
from imagenet_opt.doctor.diagnosis import Diagnosis
from imagenet_opt.doctor.rule import Finding
from imagenet_opt.measure.stats.paired_ratios import UNDECIDED
from imagenet_opt.probe.testbed import Testbed

ROUNDS = 3
"""Full runs with the overrides, and as many full runs without the overrides."""
_WITHOUT, _WITH = "without", "with"


@dataclass(frozen=True)
class Trial:
    """Full runs without and with the overrides of a finding, whose `gain` is the predicted one, if any."""

    remedy: Finding
    rounds: Rounds[float]

    @property
    def gain(self) -> Gain:
        return gain_of(self.rounds, _WITH, _WITHOUT)

    @property
    def helps(self) -> bool:
        return self.gain.verdict == "faster"

    def plain(self) -> dict[str, Any]:
        """As a dict for a JSON file. before, after: images per second of each round."""
        return {
            "rule": self.remedy.rule,
            "overrides": self.remedy.overrides,
            "before": self.rounds.results[_WITHOUT],
            "after": self.rounds.results[_WITH],
            "predicted": self.remedy.gain,
            "gain": self.gain.ratio._asdict(),
            "helps": self.helps,
        }

    def __str__(self) -> str:
        predicted = "" if self.remedy.gain is None else f"; predicted {self.remedy.gain:.2f} x"
        return f"{self.gain.before:,.0f} -> {self.gain.after:,.0f} images/s, {self.gain}{predicted}"


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
    cold = diagnosis.measurements.is_cold
    trial = Trial(remedy, try_out(overrides, remedy.overrides, seconds=seconds, cold=cold))
    print(f"{remedy.rule}, {' '.join(remedy.overrides)}: {trial}")
    if trial.gain.verdict == UNDECIDED:
        say(f"what is {UNDECIDED} is not kept: raise --budget, which makes the {2 * ROUNDS} runs longer")
    if trial.helps:
        say(how_to_train(write_experiment(diagnosis, trial), overrides))
    return trial


def remedy_of(diagnosis: Diagnosis) -> Finding | None:
    """The first rule that fired and has overrides: causes in their order, then the environment."""
    fired = [finding for finding in diagnosis.findings if finding.fired and finding.overrides]
    return min(fired, key=lambda finding: finding.environment, default=None)


def try_out(overrides: tuple[str, ...], changes: tuple[str, ...], *, seconds: float, cold: bool) -> Rounds[float]:
    """Images per second of full runs with and without the changes. cold: whether reads go to storage."""
    testbeds = {_WITHOUT: Testbed(composed(overrides)), _WITH: Testbed(composed((*overrides, *changes)))}
    # The second testbed reads the files in reverse order, so that no server has them in memory from the first.
    testbeds[_WITH].samples.rows = testbeds[_WITHOUT].samples.rows[::-1]
    with announced(2 * ROUNDS) as announce:

        def rate(name: str, number: int) -> float:
            announce(f"round {number + 1} of {ROUNDS}, {name} {' '.join(changes)}")
            return testbeds[name].full_run(seconds, cold=cold)[1]

        return in_rounds(testbeds, rate, range(ROUNDS))


def write_experiment(diagnosis: Diagnosis, trial: Trial) -> Path:
    """Write conf/experiment/tuned_<host>_doctor.yaml, with the measured rates in its header."""
    run = diagnosis.measurements
    simulated = f", simulated {run.simulated}" if run.simulated else ""
    result = f"{run.date}, {host()}{simulated}: {trial.remedy.rule}; {trial}"
    return write_tuned("doctor", trial.remedy.overrides, (result, run.command))
