"""Measures the full pipelines of rows that take turns, each in processes of its own."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from imagenet_opt import machine
from imagenet_opt.measure.stats.rounds import TurnFailed
from imagenet_opt.object_storage import is_url
from imagenet_opt.probe.alternation import Timed, alternate, cycle_seconds
from imagenet_opt.probe.isolated import InTurns
from imagenet_opt.study.result_cache import ResultCache, say
from imagenet_opt.study.steps.calm import NUM_CYCLES, Cycle, calm_cycles
from imagenet_opt.study.steps.plan import Row
from imagenet_opt.study.steps.turn import Speed, add, in_own_process, least_others, reasons
from imagenet_opt.study.steps.worker import FullJob

_MOST_TAKEN = 0.5
"""Share of the free memory, and of the free shared memory, that all pipelines may hold together."""
_TOO_SHORT = "the run ended before it could be measured: raise --seconds, lower data.batch_size or use more images"


def measure_full(
    names: Sequence[str],
    row_of: Callable[[str], Row],
    job_of: Callable[[Row], FullJob],
    *,
    number: int,
    turns: dict[str, list[Speed]],
    cache: ResultCache,
    label: str,
    single: set[str],
) -> Iterator[tuple[Row, str]]:
    """Measure the full pipelines of these rows in round `number`, or take stored results, and add them to `turns`.

    Rows take turns as far as memory allows (`Pipelines.has_room`), but not on a GPU, nor if they read cold storage, a
    URL or simulated slow storage, since reads go on while processes are stopped. A row that fails beside others is
    measured again by itself; its name is added to `single`, and in later rounds these rows come last. Yields each row
    that fails by itself, with the reason; then `row_of` may return other rows. Results also have turn_seconds, the
    row's share of the time. label: for the report of a new measurement.
    """
    single.update(name for name in names if _stays_alone(row_of(name), job_of(row_of(name))))
    waiting = deque(sorted(names, key=single.__contains__) if number else names)  # later rows of a ladder need earlier
    while waiting:
        began, group, failed = time.perf_counter(), list[Row](), None
        with Pipelines(cache.folder) as pipelines:
            try:
                while waiting and pipelines.has_room() and not (group and single & {waiting[0], group[0].name}):
                    row = row_of(waiting.popleft())
                    if (stored := cache.get(job_of(row), number, config=row.config)) is not None:
                        add(turns, row.name, number, stored)
                        continue
                    group.append(row)
                    together = f", then {len(group)} rows take turns" if len(group) > 1 else ""
                    cache.report(f"{label}{row.name}{together}")
                    try:
                        takes_part = pipelines.start(row, job_of(row), stops=row.name not in single)
                    except PipelineFailed as error:
                        if len(group) == 1:
                            raise
                        _separate(error, single)
                        takes_part = False
                    if not takes_part:
                        waiting.appendleft(group.pop().name)
                        break
                speeds = pipelines.measure(least_others(turns.values())) if group else {}
            except PipelineFailed as error:
                failed = error
        if failed is None:
            seconds = (time.perf_counter() - began) / max(1, len(group))
            for row in group:
                speed = speeds[row.name] | {"turn_seconds": seconds}
                cache.put(job_of(row), number, speed, config=row.config)
                add(turns, row.name, number, speed)
        elif len(group) == 1:
            yield group[0], str(failed)
        else:
            _separate(failed, single)
            waiting.extendleft(row.name for row in reversed(group))


def _separate(error: "PipelineFailed", single: set[str]) -> None:
    say(f"{error.name} failed beside other rows, so it takes no turns with them from now on: {error}")
    single.add(error.name)


def _stays_alone(row: Row, job: FullJob) -> bool:
    data = row.config["data"]
    is_slowed = bool(data.get("added_latency_ms") or data.get("max_mb_per_second"))
    return job.cold or row.is_on_gpu or is_url(data.get("root")) or is_slowed


class PipelineFailed(TurnFailed):
    """The pipeline of row `name` failed."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(reason)
        self.name = name


class Pipelines:
    """Full pipelines of rows, each in processes of its own, of which those of one row work at a time. On exit all end.

    Two pipelines that take short turns differ less than two that are measured one after the other, because
    the speed of a CPU changes within parts of a second. folder: see `in_own_process`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._processes = folder, dict[str, InTurns]()
        self._stack, self._room_before = ExitStack(), _room()
        self._seconds, self._window_seconds, self._multiple = 0.0, 0.0, 1
        self._lacks_memory = False

    def __enter__(self) -> "Pipelines":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def has_room(self) -> bool:
        """Whether another pipeline may start: one that takes as much memory as the mean of the others still fits."""
        num, rooms = len(self._processes), zip(_room(), self._room_before, strict=True)
        fits = all(before - now <= _MOST_TAKEN * before * num / (num + 1) for now, before in rooms)
        return num == 0 or (fits and not self._lacks_memory)

    def start(self, row: Row, job: FullJob, *, stops: bool) -> bool:
        """Start the row's pipeline, and let it work until its measurement may begin. stops: whether it is stopped
        between its turns; others need this.

        Returns False, and ends the pipeline, if memory limits its loader (`data.budget`): it must start before the
        others. Raises PipelineFailed.
        """
        try:
            with ExitStack() as stack:
                own = in_own_process("full", job, self._folder, timed_seconds=job.seconds, stops=stops)
                process = stack.enter_context(own)
                if (report := process.turn()) is None:
                    raise TurnFailed(_TOO_SHORT)
                self._lacks_memory = report["lacks_memory"]
                if self._lacks_memory and self._processes:
                    return False
                self._processes[row.name] = process
                self._seconds = job.seconds
                if not row.is_on_gpu:  # there, a turn is long enough for a cycle
                    self._window_seconds = job.seconds / NUM_CYCLES
                    self._multiple = max(self._multiple, report["batches_per_round"])
                self._stack.push(stack.pop_all())
                return True
        except TurnFailed as error:
            raise PipelineFailed(row.name, str(error)) from error

    def measure(self, least_percent: float | None) -> dict[str, Speed]:
        """Let the pipelines take turns, and return the results by row. Raises PipelineFailed.

        least_percent: see `calm_cycles`. Results are those of `worker.full`, without device_seconds, and full, images
        per second; busy, the share of the time in which the device had work; others_percent, see `Calm`; and the row's
        share of num_discarded.
        """
        names, reports = list(self._processes), dict[str, Any]()

        def turn(name: str) -> Timed | None:
            reports[name] = report = self._take_part(name, lambda process: process.turn())
            if report is None or report["window"] is None:
                return None
            num_images, seconds = report["window"]
            return num_images, seconds

        def cycle() -> Cycle | None:
            cycle_length = cycle_seconds(self._window_seconds, len(names))
            windows = alternate(names, turn, seconds=cycle_length, multiple=self._multiple)
            if None in reports.values():
                return None
            if len(windows) < len(names):
                return Cycle({})
            is_enough = all(report["is_enough"] for report in reports.values())
            return Cycle(windows, is_enough, any(report["clocks_lowered"] for report in reports.values()))

        calm = calm_cycles(cycle, seconds=self._seconds, least_percent=least_percent)
        counts = {"others_percent": calm.others_percent, "num_discarded": calm.num_discarded / len(names)}
        speeds: dict[str, Speed] = {}
        for name in sorted(self._processes, key=lambda name: reports[name] is not None):  # ended ones know why
            facts = self._take_part(name, lambda process: process.end())
            if (rate := calm.rates.get(name)) is None:
                raise PipelineFailed(name, _TOO_SHORT)
            busy = min(1.0, facts.pop("device_seconds") * rate / facts["batch_size"])
            speeds[name] = {"full": rate, "busy": busy, **facts, **counts}
        return speeds

    def _take_part(self, name: str, part: Callable[[InTurns], Any]) -> Any:
        try:
            with reasons():
                return part(self._processes[name])
        except TurnFailed as error:
            raise PipelineFailed(name, str(error)) from error


def _room() -> tuple[int, int]:
    return machine.available_memory(), machine.free_shared_memory()
