"""The queue between loader and device: how long it hides a loader that is too slow, beside the law."""

import time
from dataclasses import replace
from functools import partial

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from imagenet_opt.cli.doctor import composed
from imagenet_opt.cli.doctor_stages import Patient
from imagenet_opt.cli.progress import announced
from imagenet_opt.cli.study_request import Request, checked_options
from imagenet_opt.data.loader import train_loader
from imagenet_opt.data.loading import Loading
from imagenet_opt.data.prefetcher import DevicePrefetcher
from imagenet_opt.measure.device_timeline import DeviceTimeline
from imagenet_opt.measure.interleave import interleave
from imagenet_opt.measure.queue_sheet import Drained, Pace, queue_sheet, scattered_sheet
from imagenet_opt.measure.sheet import Sheet

_STARTING, _TIMED = 3, 8
"""Batches that are thrown away, and those that then tell how long the loader takes for one."""
_LOOK_SECONDS, _STILL_SECONDS = 0.01, 0.3


class Options(BaseModel):
    """prefetch_factors: depths of the queue. num_steps: of each turn. load_over_compute: how much too slow the loader
    is. load_seconds: the storage is slowed until a batch takes about so long; None for the storage as it is.
    """

    model_config = ConfigDict(extra="forbid")
    prefetch_factors: tuple[PositiveInt, ...] = Field(min_length=1)
    num_steps: int = Field(ge=6)
    load_over_compute: float = Field(gt=1)
    load_seconds: float | None = Field(gt=0)


def run(request: Request) -> list[Sheet]:
    """Raises ImagenetOptError."""
    options = checked_options(Options, request)
    patient = Patient(composed(request.overrides))
    num_requests = len(patient.samples.store.groups(patient.samples.rows[: patient.how.batch_size]))
    how = slowed(patient.how, options.load_seconds, num_requests)
    with announced(1 + request.repeats * len(options.prefetch_factors)) as announce:
        announce("the loader alone")
        load_seconds, decode_seconds = loader_seconds(patient, how)
        pace = Pace(load_seconds, load_seconds / options.load_over_compute, decode_seconds)
        rounds = interleave(
            {
                str(depth): partial(drain, patient, replace(how, prefetch_factor=depth), pace, options.num_steps)
                for depth in options.prefetch_factors
            },
            repeats=request.repeats,
            before_turn=lambda number, name, done: announce(f"data.prefetch_factor={name}"),
        )
    return [queue_sheet({int(depth): found for depth, found in rounds.results.items()}, pace), scattered_sheet()]


def slowed(how: Loading, load_seconds: float | None, num_requests: int) -> Loading:
    """One worker with one request in flight, of which a batch takes `num_requests`, each with added latency.

    It then reads one batch ahead: see Reader.
    """
    one = replace(how, samples_per_epoch=None, num_workers=1, reads_in_flight=1)
    return one if load_seconds is None else replace(one, added_latency_ms=1000 * load_seconds / num_requests)


def loader_seconds(patient: Patient, how: Loading) -> tuple[float, float]:
    """Of a batch, by a loader whose batches are taken at once; and how long the worker decodes one."""
    loader, stamps = _loader(patient, replace(how, prefetch_factor=1)), []
    batches = iter(loader)
    try:
        for _ in range(_STARTING + _TIMED + 1):
            next(batches)
            stamps.append(time.perf_counter())
    finally:
        batches.close()  # type: ignore[attr-defined]
        loader.close()
    return (stamps[-1] - stamps[_STARTING]) / _TIMED, loader.drain()["loader/decode_seconds"]


def drain(patient: Patient, how: Loading, pace: Pace, num_steps: int) -> Drained:
    """Fill the queue, then let a simulated device take its batches."""
    loader, timeline = _loader(patient, how), DeviceTimeline()
    batches = iter(loader)
    try:
        next(batches)  # starts the worker
        num_ready = _filled(loader, patience=3 * pace.load_seconds + _STILL_SECONDS)
        for _ in range(num_steps):
            next(batches)
            timeline.submit(pace.compute_seconds)
            timeline.synchronize()  # the law's device takes a batch when it can begin with it
    finally:
        batches.close()  # type: ignore[attr-defined]
        loader.close()
    return Drained(num_ready, tuple(step.idle_seconds for step in timeline.steps))


def _loader(patient: Patient, how: Loading) -> DevicePrefetcher:
    loader = train_loader(patient.samples.listed(patient.samples.rows), how, patient.seat)
    loader.finish = lambda batch: batch  # type: ignore[assignment,return-value]
    return loader


def _filled(loader: DevicePrefetcher, patience: float) -> int:
    """Batches that are ready, once no more have come for so long."""
    num_ready, since = -1, time.monotonic()
    while time.monotonic() - since < patience:
        if loader.num_ready != num_ready:
            num_ready, since = loader.num_ready, time.monotonic()
        time.sleep(_LOOK_SECONDS)
    return num_ready
