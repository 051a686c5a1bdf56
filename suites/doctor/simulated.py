"""The doctor's rules on made-up machines: `python -m suites.doctor.simulated [--draws 10] [--random 300]`.

Each draw gives the doctor the rates that the experiments would measure on a machine, with a scatter of 2 %. A verdict
is right if the limit that it names, once relaxed, brings at least half of the best gain. It is also right to call a run
healthy whose GPU is busy 90 % of the time, or balanced if no limit brings 5 %. A gain is good within 15 % of the rate
after the remedy.
"""

import argparse
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import numpy as np

from imagenet_opt.data.budget import fit_loader
from imagenet_opt.doctor.causes import judge
from imagenet_opt.doctor.diagnosis import Diagnosis
from imagenet_opt.doctor.evidence import Evidence
from imagenet_opt.doctor.first_look import Host, Setup
from imagenet_opt.doctor.first_touch import Touches
from imagenet_opt.doctor.pack_forecast import PackForecast
from imagenet_opt.measure.stats.rate import Ceiling
from imagenet_opt.measure.stats.verdict import LEAST_GAIN
from imagenet_opt.measure.telemetry.gpu import GpuState
from imagenet_opt.measure.telemetry.idle_causes import HEALTHY_BUSY
from suites.doctor.machines import MACHINES, RARE, random_machine
from suites.doctor.physics import GIB, Machine, relaxed

SCATTER = 0.02
GOOD = 0.15
LIMITS: Mapping[str, set[str]] = {
    "throttled": {"bandwidth"},
    "cache_too_small": {"cache"},
    "lazy_mount": {"first touch"},
    "storage_latency": {"latency", "requests", "stalls"},
    "storage_bandwidth": {"bandwidth", "stalls"},
    "little_memory": {"workers", "prefetch"},
    "small_prefetch": {"prefetch", "stalls"},
    "busy_neighbour": {"neighbour"},
    "few_workers": {"workers"},
    "few_cpus": {"more CPUs", "CPUs"},
    "slow_decode": {"CPUs"},
    "contention": {"CPUs", "launches"},
    "launch_bound": {"launches"},
    "slow_copy": {"copy"},
    "host_sync": {"syncs"},
    "slow_callback": {"main process"},
    "slow_logging": {"main process"},
    "checkpoint_stall": {"main process"},
    "slow_gpu": {"GPU"},
    "shared_gpu": {"GPU sharing"},
    "unexplained": {"hidden"},
}
"""Cause -> the limits that it may mean."""


@dataclass
class Tally:
    """Verdicts on one machine. errors: predicted / true rate after the remedy, minus 1. weak: verdicts with a cause
    whose gain is predicted below LEAST_GAIN."""

    machine: Machine
    truth: Mapping[str, float]
    causes: Counter[str] = field(default_factory=Counter)
    levels: Counter[str] = field(default_factory=Counter)
    num_right: int = 0
    errors: list[float] = field(default_factory=list)
    weak: int = 0
    sentence: str = ""


def fitted(machine: Machine) -> tuple[Machine, Setup]:
    """The machine with the workers and batches that the memory allows, and the doctor's first look at it."""
    batch_bytes = int(machine.crop_mb * 1e6 * machine.batch)
    budget = fit_loader(
        num_workers=machine.workers or "auto",
        prefetch_factor=machine.prefetch,
        batch_bytes=batch_bytes,
        cpus=machine.vcpus,
        memory=int(machine.memory_gib * GIB),
        shared_memory=int(machine.shm_gib * GIB),
    )
    setup = Setup(
        usable_cpus=machine.vcpus,
        num_workers=budget.num_workers,
        prefetch_factor=budget.prefetch_factor,
        budget=budget,
        batch_bytes=float(batch_bytes),
        num_samples=machine.num_images,
        has_gpu=True,
        packed=machine.packed,
        cached_share=machine.cached,
        cache_room=machine.room if machine.is_url else None,
        rated_images_per_second=machine.rated or None,
    )
    return replace(machine, workers=budget.num_workers, prefetch=budget.prefetch_factor), setup


class Experiments:
    """What the experiments measure on a machine with its workers and batches: true rates, with scatter."""

    def __init__(self, machine: Machine, random: np.random.Generator) -> None:
        self.machine, self.random = machine, random
        self.depths = {depth: self.rate(min(machine.read_rate(depth), 8000.0)) for depth in (1, 4, 16, 64, 256)}
        self.ceilings = self._cold() | (self._warm() if machine.keeps_files else {})

    def rate(self, true: float, facts: dict[str, float] | None = None, num: int = 6) -> Ceiling:
        base = true * math.exp(self.random.normal(0, SCATTER))
        windows = tuple(base * math.exp(self.random.normal(0, SCATTER)) for _ in range(num))
        return Ceiling(windows, facts or {}, in_bursts=True)

    def _cold(self) -> dict[str, Ceiling]:
        m, rate = self.machine, self.rate
        storage = max(self.depths.values(), key=lambda ceiling: ceiling.images_per_second)
        reading = {"cpus": min(1.0, storage.images_per_second / 8000), "latency_median": m.latency}
        kernels = {"device_seconds": m.kernel_seconds}
        return {
            "gpu": rate(m.batch / max(m.kernel_seconds, m.launch), kernels | {"main_cpu_seconds": m.launch}),
            "gpu_beside_loader": rate(m.beside_rate(), kernels),
            "loader_cold": self._loader(0.0),
            "full_cold": rate(m.run_rate(0.0), kernels),
            "decode_one": rate(m.decode_rate(1)),
            "decode_all": rate(m.decode_rate(m.num_workers)),
            "storage_cold": replace(storage, facts=reading),
            "copy": rate(m.copy_rate),
            "copy_overlapped": rate(m.copy_rate, num=1),
        }

    def _warm(self) -> dict[str, Ceiling]:
        loader, kernels = self._loader(None), {"device_seconds": self.machine.kernel_seconds}
        whole = self.rate(self.machine.run_rate(None), kernels)
        return {"loader_warm": loader, "full_warm": whole, "storage_cached": self.rate(8000.0, {"cpus": 1.0})}

    def _loader(self, hits: float | None) -> Ceiling:
        m, workers = self.machine, self.machine.num_workers
        total, decode = (workers * m.batch / speed for speed in (m.loader_rate(hits), m.decode_rate(workers)))
        computing = decode * min(1.0, min(m.vcpus, m.quota) / (workers + m.neighbour))
        facts = {
            "read_seconds": max(0.002, total - decode),
            "decode_seconds": computing,
            "cpu_wait_seconds": decode - computing,
            "num_workers": float(workers),
            "reads_in_flight": 1.0 if hits is None else float(m.reads_per_worker),
            "longest_gap_seconds": max(0.6 * total, 0.0 if hits is None else m.stall),
            "requests": 1000.0,
            "throttled": 0.0 if hits is None else 1000 * m.refused,
        }
        return self.rate(m.loader_rate(hits), facts)

    def workers_curve(self, asked_workers: int) -> tuple[tuple[float, float], ...]:
        """Images per second decoded, by workers; not with more workers than memory allows."""
        m, found = self.machine, self.ceilings
        most = {}
        if m.num_workers >= asked_workers:
            most = {float(m.vcpus): self.rate(m.decode_rate(m.vcpus)).images_per_second}
        one = {1.0: found["decode_one"].images_per_second}
        return tuple(sorted((one | most | {float(m.num_workers): found["decode_all"].images_per_second}).items()))


def measured(asked: Machine, random: np.random.Generator) -> Evidence:
    """What the doctor finds on this machine."""
    m, setup = fitted(asked)
    experiments = Experiments(m, random)
    touches = Touches(m.first_touch or m.latency, m.latency, m.first_touch > 0, 32 * m.num_workers, "")
    return Evidence(
        simulated=None,
        batch_size=m.batch,
        setup=setup,
        host=_host(m),
        mb_per_image=m.image_mb,
        ceilings=experiments.ceilings,
        curves={
            "workers": experiments.workers_curve(setup.budget.asked_workers),
            "reads_in_flight": tuple((float(n), found.images_per_second) for n, found in experiments.depths.items()),
        },
        others_cpus=0.0 if m.installed else m.neighbour * min(1.0, m.vcpus / (m.num_workers + m.neighbour + 1)),
        touches=None if m.is_url else touches,
        pack=None if m.packed else PackForecast("for=224", m.decode_ms / m.packed_ms, 0.45),
        gpu=GpuState(index=0, name="a GPU", others=((7, "python", 900),) if m.gpu_share < 1 else ()),
        left_out="" if m.keeps_files else "files do not stay in memory",
        phases=_phases(m),
        waits_per_step=m.syncs,
        waits=("item at mine.py:7",) if m.syncs else (),
        config={"data": {"num_workers": asked.workers or "auto", "reads_in_flight": m.reads or "auto"}},
    )


def _host(m: Machine) -> Host:
    installed = m.installed or m.vcpus
    return Host(
        installed_cpus=installed,
        installed_cores=int(max(m.cores, installed / 2)),
        cpu_limits={"affinity": installed, "cgroup quota": m.vcpus} if m.installed else {"affinity": m.vcpus},
        free_shared_memory=int(m.shm_gib * GIB),
        available_memory=int(m.memory_gib * GIB),
    )


def _phases(m: Machine) -> dict[str, float]:
    """Seconds of a step in which the main process waits for data, of the step itself, and of slow callbacks."""
    run = m.run_rate(0.0)
    slow = m.main_slowdown(min(1.0, run / m.decode_rate(m.num_workers)))
    own = {"callback Mine": slow * m.callback, "logging": slow * m.logging, "checkpoint": slow * m.checkpoint}
    step, host, others = m.batch / run, slow * (m.launch + m.hidden), slow * (m.callback + m.logging + m.checkpoint)
    free = host + others + m.kernel_seconds if m.syncs else max(m.kernel_seconds, host + others)
    fetch = max(0.001, step - others - host) if step > 1.015 * free else 0.001
    in_step = {"fetch": fetch, "step": max(m.launch, step - fetch - others)}
    return in_step | {name: seconds for name, seconds in own.items() if seconds}


def gains(asked: Machine) -> dict[str, float]:
    """Limit -> gain of the next epoch without it; of the room in the local cache, gain of later epochs."""
    now = fitted(asked)[0].epochs()
    new = {name: fitted(machine)[0].epochs() for name, machine in relaxed(asked).items()}
    found = {name: rates[0] / now[0] for name, rates in new.items()} | {"cache": new["cache"][1] / now[1]}
    return found | {"workers": max(found["workers"], _with_memory(asked).epochs()[0] / now[0])}


def _with_memory(asked: Machine) -> Machine:
    free = fitted(replace(asked, shm_gib=4096.0, memory_gib=4096.0))[0]
    return replace(fitted(asked)[0], workers=free.workers, prefetch=free.prefetch)


def _after(asked: Machine, cause: str, overrides: Iterable[str]) -> float | None:
    """Rate after the remedy of a verdict; None if the remedy has no one effect."""
    m = fitted(asked)[0]
    values = dict(word.partition("=")[::2] for word in overrides)
    reads = values.get("data.reads_in_flight")
    deeper = {"reads": 0 if reads == "auto" else int(reads)} if reads else None
    remedies: dict[str, Callable[[], Machine]] = {
        "slow_decode": lambda: replace(m, decode_ms=m.packed_ms),
        "few_workers": lambda: replace(m, workers=m.vcpus),
        "few_cpus": lambda: replace(m, vcpus=m.installed, cores=max(m.cores, m.installed / 2), workers=m.installed),
        "busy_neighbour": lambda: replace(m, neighbour=0.0),
        "little_memory": lambda: _with_memory(asked),
        "small_prefetch": lambda: replace(m, prefetch=100),
        "launch_bound": lambda: replace(m, launch=m.launch / 20),
        "contention": lambda: replace(m, workers=max(1, m.num_workers - 1)),
        "slow_copy": lambda: replace(m, copy_gb_per_second=1000.0),
        "host_sync": lambda: replace(m, syncs=0.0),
        "slow_callback": lambda: replace(m, callback=0.0),
        "slow_logging": lambda: replace(m, logging=0.0),
        "checkpoint_stall": lambda: replace(m, checkpoint=0.0),
        "healthy": lambda: replace(m, gpu=1e6),
        "slow_gpu": lambda: replace(m, gpu=m.rated),
        "shared_gpu": lambda: replace(m, gpu_share=1.0),
        "unexplained": lambda: replace(m, hidden=0.0),
    }
    first, later = m.epochs()
    if cause == "lazy_mount":
        return replace(m, first_touch=0.0).epochs()[0]
    if cause == "cache_too_small" or cause.startswith("storage") or cause == "throttled":
        passes = first < 0.8 * later
        return later if passes else m.run_rate(None) if deeper is None else replace(m, **deeper).epochs()[0]
    return remedies[cause]().epochs()[0] if cause in remedies else None


def add(tally: Tally, asked: Machine, diagnosis: Diagnosis) -> None:
    cause, best = diagnosis.cause, max(tally.truth.values())
    if cause in ("healthy", "balanced"):
        is_busy = fitted(asked)[0].epochs()[0] * fitted(asked)[0].kernel_seconds >= HEALTHY_BUSY * asked.batch
        is_right = best < LEAST_GAIN or (cause == "healthy" and is_busy)
    else:
        is_right = any(tally.truth[limit] >= max((1 + best) / 2, LEAST_GAIN) for limit in LIMITS[cause])
    tally.num_right += is_right
    tally.causes[cause] += 1
    tally.levels[diagnosis.confidence.level] += 1
    tally.sentence = diagnosis.sentence
    found = next((each for each in diagnosis.findings if each.rule == cause), None)
    if diagnosis.next_rate is not None:
        tally.weak += cause not in ("healthy", "balanced") and (diagnosis.next_gain or 0) < LEAST_GAIN
        true = _after(asked, cause, found.overrides if found else ())
        tally.errors += [] if true is None else [diagnosis.next_rate / true - 1]


def tallied(machines: Mapping[str, Machine], *, draws: int, seed: int = 5) -> dict[str, Tally]:
    random, tallies = np.random.default_rng(seed), {}
    for name, machine in machines.items():
        tallies[name] = tally = Tally(machine, gains(machine))
        for _ in range(draws):
            add(tally, machine, judge(measured(machine, random)))
    return tallies


def table(tallies: Mapping[str, Tally]) -> str:
    """Markdown: machine, its limits, verdicts, predicted / true rate, the last sentence."""
    rows = ["| machine | limits | verdicts | right | predicted / true | sentence |", "|---|---|---|---|---|---|"]
    for name, tally in tallies.items():
        limits = ", ".join(f"{limit} {gain:.2f}" for limit, gain in tally.truth.items() if gain >= LEAST_GAIN)
        verdicts = ", ".join(f"{cause} {num}" for cause, num in tally.causes.most_common())
        ratio = f"{1 + median(tally.errors):.2f}" if tally.errors else ""
        right = f"{tally.num_right} of {tally.causes.total()}"
        rows.append(f"| {name} | {limits or 'none'} | {verdicts} | {right} | {ratio} | {tally.sentence} |")
    return "\n".join(rows)


def summary(tallies: Mapping[str, Tally]) -> dict[str, Any]:
    """Verdicts and those that are right, machines with at least 8 of 10 right, predictions and good ones, weak ones."""
    every = list(tallies.values())
    errors = [error for tally in every for error in tally.errors]
    levels = Counter(level for tally in every for level in tally.levels.elements())
    return {
        "machines": len(every),
        "right machines": sum(tally.num_right >= 0.8 * tally.causes.total() for tally in every),
        "verdicts": sum(tally.causes.total() for tally in every),
        "right": sum(tally.num_right for tally in every),
        "gains": len(errors),
        "good gains": sum(abs(error) <= GOOD for error in errors),
        "without gain": sum(tally.weak for tally in every),
        "confidence": dict(levels),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--random", type=int, default=300, help="number of random machines, one draw each")
    options = parser.parse_args()
    random = np.random.default_rng(11)
    mixed = {f"random {number}": random_machine(random) for number in range(options.random)}
    for title, machines, draws in (("plain", MACHINES, options.draws), ("rarer", RARE, options.draws)):
        tallies = tallied(machines, draws=draws)
        print(f"{table(tallies)}\n\n{title}: {summary(tallies)}\n")
    print(f"random: {summary(tallied(mixed, draws=1))}")


if __name__ == "__main__":
    main()
