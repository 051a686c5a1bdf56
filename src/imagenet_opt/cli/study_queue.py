"""The queue between loader and device: how long it hides a loader that is too slow, beside the law."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from imagenet_opt.cli.study_request import Request, checked_options
from imagenet_opt.cli.study_rounds import KeptTurns, rounds_of
from imagenet_opt.config.compose import composed
from imagenet_opt.data.loader import train_loader
from imagenet_opt.data.loading import Loading
from imagenet_opt.data.prefetcher import DevicePrefetcher
from imagenet_opt.display.progress import announced
from imagenet_opt.display.table import Sheet
from imagenet_opt.measure.queue_sheet import Drained, queue_sheet, scattered_sheet
from imagenet_opt.measure.rehearsal.device_timeline import DeviceTimeline
from imagenet_opt.probe.testbed import Patient

_STARTING, _TIMED = 3, 5
"""Batches that are thrown away, and those that then tell how long the loader takes for one."""
_LOOK_SECONDS, _STILL_SECONDS, _STILL = 0.01, 0.1, 3
"""A queue is full once nothing has come for three times as long as the loader takes for a batch."""
_HELD = 4
"""Batches that the process which trains holds at most, beside prefetch_factor."""


class Options(BaseModel):
    """prefetch_factors: depths of the queue. num_steps: of each turn. load_over_compute: how much too slow the loader
    is. load_seconds: the storage is slowed until a batch takes about so long; None for the storage as it is.
    """

    model_config = ConfigDict(extra="forbid")
    prefetch_factors: tuple[PositiveInt, ...] = Field(min_length=1)
    num_steps: int = Field(ge=6, le=10_000)
    load_over_compute: float = Field(gt=1)
    load_seconds: float | None = Field(gt=0)


def run(request: Request) -> list[Sheet]:
    """Raises ImagenetOptError."""
    options = checked_options(Options, request)
    patient = Patient(composed(request.overrides))
    num_requests = len(patient.samples.store.groups(patient.samples.rows[: patient.how.batch_size]))
    how = slowed(patient.how, options.load_seconds, num_requests)
    with announced(1) as announce:
        announce("the loader alone")
        kept = KeptTurns(request, tuple[float, float])  # the turns hold only beside what it gave
        load_seconds, decode_seconds = kept.take("the loader alone", partial(alone, patient, how))
    compute_seconds = load_seconds / options.load_over_compute
    turns = {
        str(depth): partial(
            drain, patient, replace(how, prefetch_factor=depth), load_seconds, compute_seconds, options.num_steps
        )
        for depth in options.prefetch_factors
    }
    rounds = rounds_of(turns, request, Drained, label="data.prefetch_factor={}")
    found = {int(depth): drained for depth, drained in rounds.results.items() if depth not in rounds.failures}
    sheet = queue_sheet(found, compute_seconds, decode_seconds)
    return [replace(sheet, notes=(*rounds.reasons, *sheet.notes)), scattered_sheet()]


def slowed(how: Loading, load_seconds: float | None, num_requests: int) -> Loading:
    """One worker with one request in flight, of which a batch takes `num_requests`, each with added latency.

    It then reads one batch ahead: see Reader.
    """
    one = replace(how, samples_per_epoch=None, num_workers=1, reads_in_flight=1)
    return one if load_seconds is None else replace(one, added_latency_ms=1000 * load_seconds / num_requests)


def alone(patient: Patient, how: Loading) -> tuple[float, float]:
    """Seconds for a batch, of a loader whose batches are taken at once; and of its worker to decode one."""
    with _batches(patient, replace(how, prefetch_factor=1), _STARTING + 1) as (loader, batches):
        for _ in range(_STARTING):
            next(batches)
        return _seconds_each(batches), loader.drain()["loader/decode_seconds"]


def drain(patient: Patient, how: Loading, load_seconds: float, compute_seconds: float, num_steps: int) -> Drained:
    """Fill the queue, let a simulated device take its batches, and then take some at once.

    load_seconds: that the loader takes for a batch when it is alone.
    """
    timeline = DeviceTimeline()
    with _batches(patient, how, 1 + num_steps + int(how.prefetch_factor)) as (loader, batches):
        next(batches)  # starts the worker
        num_ready = _filled(loader, _STILL * max(_STILL_SECONDS, load_seconds))
        for _ in range(num_steps):
            next(batches)
            timeline.submit(compute_seconds)
            timeline.synchronize()  # the law's device takes a batch when it can begin with it
        for _ in range(loader.num_ready + 1):
            next(batches)
        seconds = _seconds_each(batches)
    return Drained(num_ready, tuple(step.idle_seconds for step in timeline.steps), seconds)


@contextmanager
def _batches(patient: Patient, how: Loading, num: int) -> Iterator[tuple[DevicePrefetcher, Iterator[object]]]:
    """A loader, and its batches as they come from the worker: `num`, those held ready then, and those timed."""
    num_batches = num + _HELD + _TIMED
    loader = train_loader(patient.samples.listed(patient.samples.rows, num_batches * how.batch_size), how, patient.seat)
    loader.finish = lambda batch: batch  # type: ignore[assignment,return-value]
    batches = iter(loader)
    try:
        yield loader, batches
    finally:
        batches.close()  # type: ignore[attr-defined]
        loader.close()


def _seconds_each(batches: Iterator[object]) -> float:
    """Of some that are taken at once."""
    began = time.perf_counter()
    for _ in range(_TIMED):
        next(batches)
    return (time.perf_counter() - began) / _TIMED


def _filled(loader: DevicePrefetcher, patience_seconds: float) -> int:
    """Batches that are ready, once no more have come for so long."""
    num_ready, since = 0, time.monotonic()
    while time.monotonic() - since < patience_seconds:
        if loader.num_ready != num_ready:
            num_ready, since = loader.num_ready, time.monotonic()
        time.sleep(_LOOK_SECONDS)
    return num_ready
