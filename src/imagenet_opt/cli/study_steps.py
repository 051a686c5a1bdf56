"""Studies of steps, such as the ladder: what each of a list of overrides brings, and whether the loss stays."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from omegaconf import OmegaConf

from imagenet_opt.cli.apart import call_apart
from imagenet_opt.cli.doctor import composed
from imagenet_opt.cli.kept import Kept
from imagenet_opt.cli.progress import duration
from imagenet_opt.cli.study_plan import Plan, Row, StepsFile
from imagenet_opt.cli.study_request import Request, checked_options
from imagenet_opt.cli.study_turn import LossJob, SpeedJob
from imagenet_opt.errors import ConfigError, ImagenetOptError
from imagenet_opt.measure.evidence import MOSTLY
from imagenet_opt.measure.interleave import TurnFailed, interleave
from imagenet_opt.measure.parity import Parity, parity
from imagenet_opt.measure.sheet import Sheet

LIMIT_SECONDS = 6 * 3600
NUM_SEEDS = 3
Speed = dict[str, float | None]


@dataclass(frozen=True)
class Storage:
    """Of which it is asked once in a study whether its files are in memory, as measuring brings them there."""

    folder: str


@dataclass
class Outcome:
    """speeds: by row, one a round. failures: by row, why. parities: by row, or why its loss was not compared.

    losses: by row and seed, the curve. cold: whether full runs read files from storage.
    """

    plan: Plan
    request: Request
    cold: bool
    speeds: dict[str, list[Speed]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    parities: dict[str, Parity | str] = field(default_factory=dict)
    losses: dict[str, dict[int, list[float]]] = field(default_factory=dict)


def run(request: Request) -> list[Sheet]:
    """Measure all rows in turns, then their losses. Raises ImagenetOptError."""
    from imagenet_opt.cli.study_live import live
    from imagenet_opt.cli.study_sheet import sheets

    kept = Kept(request.folder)
    outcome = begin(request, kept)
    with live(outcome) as announce:
        measure_speeds(outcome, kept, announce)
        if request.parity_steps:
            compare_losses(outcome, kept, announce)
        if not request.apply:
            return sheets(outcome)
        from imagenet_opt.cli.study_winners import keep_winners

        return [*sheets(outcome), keep_winners(outcome, kept, announce)]


def begin(request: Request, kept: Kept) -> Outcome:
    """Nothing measured yet, except whether the data is in memory. Raises ConfigError for a study that cannot be."""
    from imagenet_opt.cli.doctor_stages import Patient

    config = composed(request.overrides)
    if "rehearsal" in config.callbacks:
        raise ConfigError("a study measures the network itself, which a rehearsal does not run; leave rehearse= out")
    file = checked_options(StepsFile, request)
    patient = Patient(composed((*request.overrides, *file.below)))
    has_gpu = patient.device.type == "cuda"
    plan = Plan(file, request.overrides, batch_size=patient.how.batch_size, has_gpu=has_gpu)
    for row in plan.rows:
        composed(plan.overrides_of(row))  # mistakes first
    storage = Storage(str(patient.samples.index.folder))
    cold = kept.take(storage, 0, lambda: (patient.samples.residency().share or 0.0) < MOSTLY)
    return Outcome(plan, request, cold=bool(cold))


def measure_speeds(outcome: Outcome, kept: Kept, announce: Callable[[str], None]) -> None:
    """Rounds of all rows; one that fails is a row with its reason, and those after it do without it."""
    rows = {row.name: row for row in outcome.plan.rows}
    rounds = {name: 0 for name in rows}

    def turn(row: Row) -> Speed:
        number, rounds[row.name] = rounds[row.name], rounds[row.name] + 1
        try:
            found = speed_of(outcome.plan.overrides_of(row), number, outcome, kept)
        except TurnFailed as error:
            if row.step is None:
                raise ConfigError(f"{row.name}: cannot be measured: {error}") from error
            outcome.plan.drop(row, first_round=number == 0)
            outcome.failures[row.name] = f"{error}" if number == 0 else f"in round {number + 1}: {error}"
            outcome.speeds.pop(row.name, None)
            raise
        outcome.speeds.setdefault(row.name, []).append(found)
        return found

    repeats = outcome.request.repeats
    interleave(
        {name: partial(turn, row) for name, row in rows.items()},
        repeats=repeats,
        before_turn=lambda number, name, done: announce(f"round {number + 1} of {repeats}: {name}"),
    )


def speed_of(overrides: tuple[str, ...], number: int, outcome: Outcome, kept: Kept) -> Speed:
    """One turn, in a process of its own. Raises TurnFailed."""
    job = SpeedJob(overrides, outcome.request.seconds, outcome.cold)
    found: Speed = kept.take(job, number, lambda: _apart("speed", job, outcome.request), config=_plain(overrides))
    return found


def compare_losses(outcome: Outcome, kept: Kept, announce: Callable[[str], None]) -> None:
    """The losses of every row against those of the first one with the same seed, beside those of other seeds."""
    plan, steps = outcome.plan, outcome.request.parity_steps
    rows = [row for row in plan.rows if row.step is not None and row.name not in plan.dropped]
    _tell_time(outcome, len(rows) + NUM_SEEDS)

    def losses(row: Row, seed: int) -> list[float]:
        announce(f"loss of {steps} steps: {row.name}, seed {seed}")
        job = LossJob((*plan.overrides_of(row), f"seed={seed}"), steps)
        measure = partial(_apart, "losses", job, outcome.request)
        found: list[float] = kept.take(job, 0, measure, config=_plain(job.overrides))
        outcome.losses.setdefault(row.name, {})[seed] = found
        return found

    first = int(composed(outcome.request.overrides).seed)
    try:
        seeds = [losses(plan.rows[0], first + i) for i in range(NUM_SEEDS)]
    except TurnFailed as error:
        outcome.parities |= {row.name: f"not compared, as {plan.rows[0].name} failed: {error}" for row in rows}
        return
    for row in rows:
        try:
            outcome.parities[row.name] = plan.other_loss(row) or parity(losses(row, first), seeds)
        except TurnFailed as error:
            outcome.parities[row.name] = f"failed: {error}"


def _tell_time(outcome: Outcome, num_runs: int) -> None:
    first = outcome.speeds[outcome.plan.rows[0].name][0]
    images = outcome.request.parity_steps * (first["batch_size"] or 0.0) * num_runs
    seconds = images / (first["full"] or 1.0)
    words = f"comparing losses trains {outcome.request.parity_steps} steps {num_runs} times, about {duration(seconds)}"
    print(f"{words}; --parity 0 leaves it out", file=sys.stderr)


def _apart(function: str, job: SpeedJob | LossJob, request: Request) -> object:
    """Raises TurnFailed."""
    cache = {"TORCHINDUCTOR_CACHE_DIR": str((request.folder / "compiled").resolve())}
    name = f"imagenet_opt.cli.study_turn.{function}"
    try:
        return call_apart(name, job, limit_seconds=LIMIT_SECONDS, environment=cache)
    except ImagenetOptError as error:
        raise TurnFailed(str(error)) from error


def _plain(overrides: tuple[str, ...]) -> object:
    return OmegaConf.to_container(composed(overrides))
