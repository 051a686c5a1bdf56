"""`imagenet-opt study study=scaling`: what more processes bring when each keeps its batch (weak scaling)."""

from functools import partial
from typing import Any

from pydantic import BaseModel, ConfigDict, PositiveInt, field_validator

from imagenet_opt import machine
from imagenet_opt.cli.apart import call_apart
from imagenet_opt.cli.progress import announced
from imagenet_opt.cli.study_request import Request, checked_options
from imagenet_opt.cli.study_scaling_turn import Job, Pace
from imagenet_opt.measure.interleave import Rounds, interleave
from imagenet_opt.measure.sheet import Cell, Column, Plot, Series, Sheet
from imagenet_opt.measure.statistics import median_interval, ratio_interval

COLUMNS = (
    Column("processes", "{:.0f}"),
    Column("images/s", "{:,.0f}"),
    Column("low", "{:,.0f}"),
    Column("high", "{:,.0f}"),
    Column("efficiency", "{:.1%}"),
    Column("low", "{:.1%}"),
    Column("high", "{:.1%}"),
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

    from imagenet_opt.cli.doctor import composed

    processes = checked_options(Scaling, request).processes
    accelerator = composed(request.overrides).trainer.accelerator
    num_gpus = torch.cuda.device_count() if accelerator in ("auto", "gpu", "cuda") else 0
    absent = {n: f"left out: {num_gpus} GPUs here" for n in processes if 0 < num_gpus < n}
    num_threads = None if num_gpus else max(1, machine.usable_cpus() // max(processes))
    turns = {
        str(n): partial(_turn, Job(request.overrides, n, request.seconds, on_gpu=num_gpus > 0), num_threads)
        for n in processes
        if n not in absent
    }
    with announced(len(turns) * request.repeats) as announce:
        rounds = interleave(
            turns,
            repeats=request.repeats,
            before_turn=lambda number, name, done: announce(f"round {number + 1}, {_named(int(name))}"),
        )
    shared = None if num_gpus else machine.usable_cpus()
    return [sheet(processes, rounds, absent, num_cpus=shared)]


def _turn(job: Job, num_threads: int | None) -> Pace:
    """num_threads: that each process computes with; left to itself, one process alone would take all CPUs."""
    own = {} if num_threads is None else {"OMP_NUM_THREADS": str(num_threads)}
    found: Any = call_apart("imagenet_opt.cli.study_scaling_turn.train", job, environment=own)
    return Pace(**found)


def _named(num_processes: int) -> str:
    return f"{num_processes} process{'es' if num_processes > 1 else ''}"


def sheet(processes: list[int], rounds: Rounds[Pace], absent: dict[int, str], *, num_cpus: int | None) -> Sheet:
    """num_cpus: that the processes share, None where each has a GPU. absent: why a number was not measured."""
    paces = {n: rounds.results.get(str(n), []) for n in processes}
    why = absent | {int(name): f"failed: {reason}" for name, reason in rounds.failures.items()}
    rows = tuple(_row(n, paces, why.get(n) or _crowding(n, num_cpus)) for n in processes)
    coverage = median_interval([0.0] * max(1, len(paces[1]))).coverage
    notes = [
        "Each process has a batch of data.batch_size, so the global batch grows with them. Efficiency is the rate "
        "divided by so many times the rate of one process, round by round.",
        f"low to high holds the median with a probability of {coverage:.0%}; more --repeats make it surer.",
    ]
    if num_cpus is not None:
        notes.append(
            f"Without GPUs all processes, each with as many threads as in every turn, share {num_cpus} CPUs with the "
            "loaders: this is no picture of GPUs."
        )
    return Sheet("Weak scaling", COLUMNS, rows, tuple(notes), tuple(_plots(rows)))


def _row(num: int, paces: dict[int, list[Pace]], remark: str | None) -> tuple[Cell, ...]:
    if remark is not None and not paces[num]:
        return (num, *[None] * (len(COLUMNS) - 2), remark)
    rates = [pace.images_per_second for pace in paces[num]]
    rate, step = median_interval(rates), median_interval([pace.step_seconds for pace in paces[num]])
    shares: tuple[Cell, ...] = (None, None, None)
    if alone := [num * pace.images_per_second for pace in paces[1]]:
        shares = ratio_interval(rates, alone)[:3]
    return (num, *rate[:3], *shares, 1000 * step.median, remark or "")


def _crowding(num: int, num_cpus: int | None) -> str | None:
    return f"more processes than CPUs ({num_cpus})" if num_cpus is not None and num > num_cpus else None


def _plots(rows: tuple[tuple[Cell, ...], ...]) -> list[Plot]:
    measured: list[Any] = [row for row in rows if row[4] is not None]
    if not measured:
        return []
    processes = tuple(row[0] for row in measured)
    alone = measured[0][1]
    columns = [tuple(column) for column in zip(*measured, strict=True)]
    x = "processes"
    rates = Series("measured", processes, columns[1], columns[2], columns[3])
    ideal = Series("ideal", processes, tuple(alone * num for num in processes))
    shares = Series("efficiency", processes, columns[4], columns[5], columns[6])
    return [
        Plot("Images per second", x, "images/s", "lines", (rates, ideal)),
        Plot("Efficiency", x, "rate / (processes x rate of one)", "lines", (shares,)),
    ]
