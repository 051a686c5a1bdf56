"""The doctor's cure, tried: the full run again with the overrides of the verdict."""

import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

from imagenet_opt.cli.tuned import host, how_to_train, write_tuned
from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.diagnosis import Diagnosis, Finding
from imagenet_opt.measure.evidence import MOSTLY

_ROUNDS = 3
_SECONDS = 5.0


@dataclass(frozen=True)
class Trial:
    """Images per second of the full run without and with the cure, in turns."""

    before: tuple[float, ...]
    after: tuple[float, ...]
    predicted: float | None

    @property
    def gain(self) -> float:
        return statistics.median(self.after) / statistics.median(self.before)

    @property
    def helps(self) -> bool:
        """Whether each turn with it was faster than each without."""
        return min(self.after) > max(self.before)

    def __str__(self) -> str:
        was, now = statistics.median(self.before), statistics.median(self.after)
        predicted = "" if self.predicted is None else f"; predicted {self.predicted:.2f} times"
        verdict = "faster" if self.helps else "no difference"
        return f"{was:.0f} -> {now:.0f} images/s, {self.gain:.2f} times{predicted}: {verdict}"


def apply(found: Diagnosis, overrides: tuple[str, ...]) -> None:
    """Try the overrides of the cause; where they help, write them as an experiment.

    Raises ConfigError where the cure is no override.
    """
    cure = cure_of(found)
    cold = found.facts.get("cached_share", 0.0) < MOSTLY
    trial = try_out(overrides, cure.overrides, predicted=cure.gain, cold=cold)
    print(f"{' '.join(cure.overrides)}: {trial}")
    if trial.helps:
        file = write_experiment(found, cure, trial)
        print(how_to_train(file, overrides), file=sys.stderr)


def cure_of(found: Diagnosis) -> Finding:
    """The first rule that fired and has a key to set. Raises ConfigError where there is none."""
    fired = [finding for finding in found.findings if finding.fired and not finding.environment]
    if not fired:
        raise ConfigError(f"--apply: the verdict is {found.cause}, there is nothing to apply")
    if (curable := next((finding for finding in fired if finding.overrides), None)) is None:
        commands = "; ".join(fired[0].commands) or fired[0].remedy
        raise ConfigError(f"--apply: no key of the configuration mends this; {commands}")
    return curable


def try_out(overrides: tuple[str, ...], cure: tuple[str, ...], *, predicted: float | None, cold: bool) -> Trial:
    """Full runs in turns; cold: each on files that are dropped from the page cache before."""
    from imagenet_opt.cli.doctor import composed
    from imagenet_opt.cli.doctor_stages import Patient

    patients = [Patient(composed(overrides)), Patient(composed((*overrides, *cure)))]
    rates: tuple[list[float], list[float]] = ([], [])
    # Files that the other has not brought into some server's memory.
    patients[1].samples.rows = patients[0].samples.rows[::-1]
    for number in range(_ROUNDS):
        for which in (0, 1) if number % 2 == 0 else (1, 0):
            rates[which].append(patients[which].full_rate(_SECONDS, cold=cold))
    return Trial(tuple(rates[0]), tuple(rates[1]), predicted)


def write_experiment(found: Diagnosis, cure: Finding, trial: Trial) -> Path:
    """conf/experiment/tuned_<host>_doctor.yaml with what was measured as its header."""
    simulated = f", simulated {found.simulated}" if found.simulated else ""
    header = (f"{found.date}, {host()}{simulated}: {found.cause}; {trial}", found.command)
    return write_tuned("doctor", cure.overrides, header)
