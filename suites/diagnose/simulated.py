"""The rules of `diagnose` on simulated loops, whose true gains are known: `python -m suites.diagnose.simulated NUM`.

Workers, the training process and neighbours share the CPUs evenly; each loop is drawn at random, "measured" with
--noise, judged, and run again after its remedy. This needs no quiet machine: about 0.1 s of a CPU a loop. It tests the
rules, not the measurements. A cause is right if its remedy brings half of what the best one brings, as logarithms.
"""

import argparse
import heapq
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import fmean, median
from types import SimpleNamespace
from typing import Any

from imagenet_opt.diagnosis.cause import judge
from imagenet_opt.diagnosis.measurements import Measurements, Parts, Trial
from imagenet_opt.diagnosis.trials import remedies
from imagenet_opt.diagnosis.verdict import HEALTHY
from imagenet_opt.measure.stats.verdict import LEAST_GAIN

PARTS = {"storage": ("wait",), "decode": ("compute",), "collate": ("collate",), "copy": ("send", "receive")}
LEAST = {"storage": 0.8, "decode": 1 / 3, "collate": 1 / 3, "copy": 0.5}
"""Least share of its part that a remedy saves."""
_HEALTHY_BELOW = 1.08  # a loop whose best remedy brings less has nothing to find
_EARLY, _ROUNDS = 8, 5


@dataclass(frozen=True)
class Loop:
    """Seconds of a sample (wait, compute), of a batch (collate, send, receive) and of the step (host, device). rare:
    share of the waits that come in one sample of 64."""

    cpus: int
    neighbours: int
    workers: int
    prefetch: int
    samples: int
    wait: float
    compute: float
    collate: float
    send: float
    receive: float
    host: float
    device: float
    rare: float = 0.0

    def with_settings(self, settings: dict[str, Any]) -> "Loop":
        prefetch = settings.get("prefetch_factor", 2)
        return replace(self, workers=settings.get("num_workers", self.workers), prefetch=prefetch)

    def remedied(self, cause: str, share: float) -> "Loop":
        return replace(self, **{name: getattr(self, name) * (1 - share) for name in PARTS[cause]})


class Run:
    """One run of a loop. Threads yield ("cpu", seconds, spent, name), ("wait", seconds), ("block",) or ("wake",)."""

    def __init__(self, loop: Loop, seed: float, *, steps: bool = True, loads: bool = True) -> None:
        self.loop, self.random, self.now = loop, random.Random(seed), 0.0
        self.num = 16 + 3 * loop.workers * loop.prefetch + (64 if loop.rare else 0)
        self.parts: list[Parts] = []
        self.stamps: list[float] = []
        self.bodies: list[float] = []
        self.received: list[float] = []
        self._ready: dict[int, Parts] = {}
        self._asked = [list[int]() for _ in range(loop.workers)]
        workers = [self._worker(number) for number in range(loop.workers if loads else 0)]
        self._simulate([self._main(steps, loads), *workers])

    def _ask(self, number: int) -> None:
        if self._asked:
            self._asked[number % len(self._asked)].append(number)

    def _batch(self) -> Iterator[Any]:
        loop, spent, began = self.loop, dict.fromkeys(("computing", "queued", "collating", "sending"), 0.0), self.now
        for _ in range(loop.samples):
            if loop.wait:
                late = 64 * loop.rare * loop.wait * (self.random.random() < 1 / 64)
                yield "wait", loop.wait * (1 - loop.rare) + late
            yield "cpu", loop.compute, spent, "computing"
        yield "cpu", loop.collate, spent, "collating"
        if loop.workers:
            yield "cpu", loop.send, spent, "sending"
        return Parts(waiting=max(0.0, self.now - began - sum(spent.values())), **spent)

    def _worker(self, number: int) -> Iterator[Any]:
        while True:
            while not self._asked[number]:
                yield ("block",)
            batch = self._asked[number].pop(0)
            self._ready[batch] = yield from self._batch()
            yield ("wake",)

    def _main(self, steps: bool, loads: bool) -> Iterator[Any]:
        loop = self.loop
        ahead = loop.workers * loop.prefetch
        for number in range(ahead):
            self._ask(number)
        for number in range(self.num):
            if loads and not loop.workers:
                self.parts.append((yield from self._batch()))
            elif loads:
                while number not in self._ready:
                    yield ("block",)
                self.parts.append(self._ready.pop(number))
                self._ask(number + ahead)
                yield ("wake",)
                began = self.now
                yield "cpu", loop.receive, {"own": 0.0, "queued": 0.0}, "own"
                self.received.append(self.now - began)
            began = self.now
            if steps:
                yield "cpu", loop.host, {"own": 0.0, "queued": 0.0}, "own"
                yield "wait", loop.device
            self.bodies.append(self.now - began)
            self.stamps.append(self.now)

    def _simulate(self, threads: list[Iterator[Any]]) -> None:
        running: dict[int, list[Any]] = {}
        timers: list[tuple[float, int]] = []
        blocked, ready = set[int](), list(range(len(threads)))
        while True:
            while ready:
                number = ready.pop(0)
                event = next(threads[number], None)
                if event is None:  # the main thread ends the run
                    return
                kind, *about = event
                if kind == "cpu":
                    running[number] = about
                elif kind == "wait":
                    heapq.heappush(timers, (self.now + about[0], number))
                elif kind == "block":
                    blocked.add(number)
                else:
                    ready += [number, *blocked]
                    blocked.clear()
            speed = min(1.0, self.loop.cpus / (len(running) + self.loop.neighbours)) if running else 1.0
            ends = [about[0] / speed for about in running.values()] + [at - self.now for at, _ in timers[:1]]
            passed = max(0.0, min(ends))
            self.now += passed
            for number, about in list(running.items()):
                about[0] -= passed * speed
                about[1][about[2]] += passed * speed
                about[1]["queued"] += passed * (1 - speed)
                if about[0] <= 1e-12:
                    del running[number]
                    ready.append(number)
            while timers and timers[0][0] <= self.now + 1e-12:
                ready.append(heapq.heappop(timers)[1])

    @property
    def seconds(self) -> float:
        first = max(_EARLY, self.loop.workers * self.loop.prefetch)
        return (self.stamps[-1] - self.stamps[first - 1]) / (self.num - first)


def drawn(draw: random.Random) -> Loop:
    def between(low: float, high: float) -> float:
        return math.exp(draw.uniform(math.log(low), math.log(high)))

    samples, loop = draw.choice([4, 16, 64]), dict[str, float]()
    for part in draw.sample(["wait", "compute", "collate", "send", "nothing"], draw.choice([1, 1, 2])):
        many = {"wait": between(0.1, 1) / samples, "compute": between(0.05, 0.6) / samples}
        loop |= {part: many.get(part, between(0.03, 0.3))} if part != "nothing" else {}
    usual = {"compute": between(2e-5, 5e-4), "collate": between(5e-4, 5e-3), "send": between(2e-4, 2e-3), "wait": 0.0}
    return Loop(
        cpus=draw.choice([2, 2, 4, 8]),
        neighbours=draw.choice([0, 0, 2]),
        workers=draw.choice([0, 1, 2, 2, 4, 8]),
        prefetch=2,
        samples=samples,
        receive=0.3 * loop.get("send", between(3e-4, 3e-3)),
        host=between(5e-4, 5e-3),
        device=between(5e-3, 0.2),
        rare=draw.choice([0.0, 0.0, 0.9]) if "wait" in loop else 0.0,
        **usual | loop,
    )


def measured(loop: Loop, noise: float, draw: random.Random) -> Measurements:
    def rounds(seconds: float) -> list[float]:
        return [seconds * math.exp(draw.gauss(0, noise)) for _ in range(_ROUNDS)]

    run, alone = Run(loop, draw.random()), Run(loop, draw.random(), steps=False)
    parts = Parts.mean(run.parts[_EARLY:])
    found = Measurements(
        kind="DataLoader",
        num_workers=loop.workers,
        prefetch_factor=loop.prefetch,
        persistent_workers=True,
        usable_cpus=loop.cpus,
        others_cpus=min(loop.cpus, loop.neighbours),
        num_leaves=2,
        num_samples=loop.samples,
        loop=rounds(run.seconds),
        body=rounds(fmean(run.bodies[_EARLY:])),
        kept=rounds(Run(loop, 0.0, loads=False).seconds),
        drained=rounds(alone.seconds),
        receiving=[median(run.received)] if run.received else [],
        parts=[parts],
    )
    if found.headroom.ratio >= LEAST_GAIN:
        most = max(2, 8 if parts.waiting > parts.total / 2 else 0, 2 * loop.cpus)
        for count in {count for count in (0, 1, 2, 4, 8) if count <= most}:
            other = Run(loop.with_settings({"num_workers": count}), draw.random(), steps=False)
            found.workers[count] = rounds(other.seconds)[0]
    found.workers[loop.workers] = median(found.drained)
    found_remedies = list(remedies(found, SimpleNamespace(most_workers=lambda factor: 64)))
    for settings in found_remedies:
        after = Run(loop.with_settings(settings), draw.random()).seconds
        trial = Trial(str(settings), settings, rounds(run.seconds), rounds(after), num_trials=len(found_remedies))
        found.trials.append(trial)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("num", type=int)
    parser.add_argument("--noise", type=float, default=0.02, help="standard deviation of a round")
    parser.add_argument("--first", type=int, default=0, help="seed of the first loop")
    options = parser.parse_args()
    counts: dict[str, list[bool]] = {name: [] for name in ("healthy", "right", "inside, not tried", "inside, tried")}
    for seed in range(options.first, options.first + options.num):
        draw = random.Random(seed)
        loop = drawn(draw)
        found = judge(measured(loop, options.noise, draw))
        now = Run(loop, 1).seconds
        gains = {cause: now / Run(loop.remedied(cause, (LEAST[cause] + 1) / 2), 1).seconds for cause in LEAST}
        settings = [{"num_workers": count} for count in (1, 2, 4) if count <= 2 * loop.cpus]
        best = max(*gains.values(), *(now / Run(loop.with_settings(each), 1).seconds for each in settings))
        real = 1.0
        if found.settings:
            real = now / Run(loop.with_settings(found.settings), 1).seconds
        elif found.cause in LEAST:
            real = now / Run(loop.remedied(found.cause, draw.uniform(LEAST[found.cause], 1)), 1).seconds
        if best < _HEALTHY_BELOW:
            counts["healthy"].append(found.cause in HEALTHY)
        else:
            counts["right"].append(math.log(max(real, gains.get(found.cause, 1.0))) >= 0.5 * math.log(best))
        if found.cause not in HEALTHY:
            kind = "tried" if found.settings else "not tried"
            counts[f"inside, {kind}"].append(found.gain[0] / 1.005 <= real <= found.gain[1] * 1.005)
        print(seed, found.cause, f"{found.gain[0]:.2f} to {found.gain[1]:.2f}, truly {real:.2f} of {best:.2f}", loop)
    print(", ".join(f"{name}: {sum(results)} of {len(results)}" for name, results in counts.items()))


if __name__ == "__main__":
    main()
