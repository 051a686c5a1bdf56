"""`imagenet-opt study study=scaling`: what more processes bring when each keeps its batch (weak scaling)."""

from functools import partial
from typing import Any

from pydantic import BaseModel, ConfigDict, PositiveInt, field_validator

from imagenet_opt import machine
from imagenet_opt.cli.study_request import Request, checked_options
from imagenet_opt.cli.study_rounds import rounds_of
from imagenet_opt.cli.study_scaling_turn import Job, StepRate
from imagenet_opt.config.build import wants_gpu
from imagenet_opt.config.compose import composed
from imagenet_opt.display.table import Cell, Column, Plot, Series, Sheet, interval, ratio_cells, series
from imagenet_opt.measure.stats.block_ratios import Ratio, measured_ratios
from imagenet_opt.measure.stats.intervals import CONFIDENCE, median_interval
from imagenet_opt.measure.stats.rounds import Rounds
from imagenet_opt.probe.isolated import call_apart, limit
from imagenet_opt.probe.throwaway_run import removed_afterwards

COLUMNS = (
    Column("processes", "{:.0f}"),
    Column("images/s", "{:,.0f}"),
    Column("interval of images/s"),
    Column("efficiency", "{:.1%}"),
    Column("interval of efficiency"),
    Column("each process is"),
    Column("ms a step", "{:,.1f}"),
    Column("remark"),
)


class Scaling(BaseModel):
    """What conf/study/scaling.yaml may hold."""

    model_config = ConfigDict(extra="forbid")
    processes: list[PositiveInt]

    @field_validator("processes")
    @classmethod
    def _one_to_compare_with(cls, found: list[int]) -> list[int]:
        if 1 not in found or len(found) != len(set(found)):
            raise ValueError(f"{found} must hold 1, with which the others are compared, and each number once")
        return sorted(found)


def run(request: Request) -> list[Sheet]:
    """All numbers of processes in turns, each in processes of its own. Raises ImagenetOptError."""
    import torch

    processes = checked_options(Scaling, request).processes
    num_gpus = torch.cuda.device_count() if wants_gpu(composed(request.overrides)) else 0
    absent = {n: f"left out: {num_gpus} GPUs here" for n in processes if 0 < num_gpus < n}
    num_threads = None if num_gpus else max(1, machine.usable_cpus() // max(processes))
    turns = {
        str(n): partial(_turn, Job(request.overrides, n, request.seconds, on_gpu=num_gpus > 0), num_threads)
        for n in processes
        if n not in absent
    }
    rounds = rounds_of(turns, request, StepRate, label="processes: {}")
    shared = None if num_gpus else machine.usable_cpus()
    return [sheet(processes, rounds, absent, num_cpus=shared)]


def _turn(job: Job, num_threads: int | None) -> StepRate:
    """num_threads: that each process computes with; left to itself, one process alone would take all CPUs."""
    own = {} if num_threads is None else {"OMP_NUM_THREADS": str(num_threads)}
    train = "imagenet_opt.cli.study_scaling_turn.train"
    with removed_afterwards() as runs:
        found: Any = call_apart(train, job, limit_seconds=limit(job.seconds), environment={**own, **runs})
    return StepRate(**found)


def sheet(processes: list[int], rounds: Rounds[StepRate], absent: dict[int, str], *, num_cpus: int | None) -> Sheet:
    """num_cpus: that the processes share, None where each has a GPU. absent: why a number was not measured."""
    paces = {n: rounds.results.get(str(n), []) for n in processes}
    why = absent | {int(name): f"failed: {reason}" for name, reason in rounds.failures.items()}
    each = {str(n): [pace.images_per_second / n for pace in found] for n, found in paces.items()}
    shares = measured_ratios(each, [(str(n), "1") for n in processes if n > 1])
    rows = [_row(n, paces[n], shares.get(str(n)), why.get(n) or _crowding(n, num_cpus)) for n in processes]
    notes = [
        "Each process has a batch of data.batch_size, so the global batch grows with them. Efficiency is the rate "
        "divided by so many times the rate of one process, with intervals that hold together with "
        f"{CONFIDENCE:.0%}; each process is slower than one alone, or it makes no difference to it.",
    ]
    if num_cpus is not None:
        notes.append(
            f"Without GPUs all processes, each with as many threads as in every turn, share {num_cpus} CPUs with the "
            "loaders: this is no picture of GPUs."
        )
    return Sheet("Weak scaling", COLUMNS, tuple(rows), tuple(notes), _plots(paces, shares))


def _row(num: int, paces: list[StepRate], share: Ratio | None, remark: str | None) -> tuple[Cell, ...]:
    if not paces:
        return (num, *[None] * (len(COLUMNS) - 2), remark)
    rate = median_interval([pace.images_per_second for pace in paces])
    step = median_interval([pace.step_seconds for pace in paces])
    efficiency: tuple[Cell, ...] = (1.0, None, None) if num == 1 else ratio_cells(share, "{:.1%}")
    return (num, rate.median, interval(rate, "{:,.0f}"), *efficiency, 1000 * step.median, remark or "")


def _crowding(num: int, num_cpus: int | None) -> str | None:
    return f"more than CPUs ({num_cpus})" if num_cpus is not None and num > num_cpus else None


def _plots(paces: dict[int, list[StepRate]], shares: dict[str, Ratio]) -> tuple[Plot, ...]:
    """None where nothing can be compared."""
    if not shares:
        return ()
    compared = [1, *map(int, shares)]
    rates = {float(n): median_interval([pace.images_per_second for pace in paces[n]]) for n in compared}
    ideal = Series("ideal", tuple(rates), tuple(n * rates[1.0].median for n in rates))
    efficiency = Series(
        "efficiency",
        tuple(map(float, shares)),
        tuple(share.ratio for share in shares.values()),
        tuple(share.low for share in shares.values()),
        tuple(share.high for share in shares.values()),
    )
    return (
        Plot("Images per second", "processes", "images/s", "lines", (series("measured", rates), ideal)),
        Plot("Efficiency", "processes", "rate / (processes x rate of one)", "lines", (efficiency,)),
    )
