"""The settings that `tune` tries, of the device, the batch and the loader."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import count, product, takewhile
from typing import Any

from omegaconf import DictConfig

from imagenet_opt.config.build import device_of, num_processes, precision_of
from imagenet_opt.tuning.climb import Axis, Setting

_ACCELERATION = "callbacks.acceleration"
COMPILE, BATCH = f"{_ACCELERATION}.compile", "data.batch_size"
_GPU_MODES = ("reduce-overhead", "max-autotune")
_WAYS = ((None, False), (None, True), ("default", False), ("default", True), *((mode, False) for mode in _GPU_MODES))
"""torch.compile's mode (None: not compiled) and cuda_graph; modes with a long search come last."""
_WORKERS, _AHEAD, _READS = KEYS = ("data.num_workers", "data.prefetch_factor", "data.reads_in_flight")


def formats(config: DictConfig) -> Iterator[Setting]:
    """Precisions and memory orders that differ from the configured ones on its device."""
    device, acceleration = device_of(config), config.callbacks.get("acceleration")

    def effective(precision: str, channels_last: bool, tf32: bool) -> tuple[object, ...]:
        """What the device uses; different words may give the same."""
        resolved = precision_of(precision, device)
        return resolved, channels_last, tf32 and device.type == "cuda" and resolved == "32-true"

    now = acceleration or {"channels_last": False, "tf32": False}
    tried = {effective(config.trainer.precision, now["channels_last"], now["tf32"])}
    for precision, channels_last in product(("mixed", "32-true"), (True, False) if acceleration else (False,)):
        if (used := effective(precision, channels_last, True)) not in tried:
            tried.add(used)
            orders = {f"{_ACCELERATION}.channels_last": channels_last, f"{_ACCELERATION}.tf32": True}
            yield {"trainer.precision": precision} | (orders if acceleration else {})


def ways(config: DictConfig) -> Iterator[Setting]:
    """Ways to compile that differ from the configured one and that its device has."""
    device, now = device_of(config), config.callbacks.acceleration
    on_gpu = device.type == "cuda"
    can_graph = on_gpu and not now.gradient_checkpointing and num_processes(config, device) == (1, 1)
    configured = (now.compile_mode if on_gpu else "default") if now.compile else None
    for mode, graph in _WAYS:
        if (graph and not can_graph) or (mode in _GPU_MODES and not on_gpu):
            continue
        if (mode, graph) != (configured, can_graph and bool(now.cuda_graph)):
            way: Setting = {COMPILE: mode is not None} | ({f"{_ACCELERATION}.compile_mode": mode} if mode else {})
            yield way | ({f"{_ACCELERATION}.cuda_graph": graph} if on_gpu else {})


def larger_batches(start: Setting, most: int) -> Axis:
    """Twice as many images, four times, and so on, up to `most`."""
    sizes = takewhile(most.__ge__, (start[BATCH] << doublings for doublings in count(1)))
    settings = [start | {BATCH: size} for size in sizes]
    return lambda best: settings


def axes(cpus: int) -> list[Axis]:
    """Settings to try, given the best: more workers, fewer, more batches ahead, fewer, then requests in flight.

    Fewer workers or batches than configured are faster if the storage, the memory or threads are the limit.
    """

    def vary(key: str, values: Callable[[Any], Iterable[object]], best: Setting) -> list[Setting]:
        auto = {_WORKERS: cpus, _AHEAD: 4}
        now = auto.get(key, "auto") if best[key] == "auto" else best[key]
        return [best | {key: value} for value in dict.fromkeys(values(now)) if value != now]

    def fewer(now: int) -> list[int]:
        now = min(now, cpus)
        return [num for num in (now - max(1, now // 4), now // 2, now // 4) if num > 0]

    return [
        partial(vary, _WORKERS, lambda now: [cpus] if now < cpus else []),
        partial(vary, _WORKERS, fewer),
        partial(vary, _AHEAD, lambda now: [2 * now]),
        partial(vary, _AHEAD, lambda now: [max(1, now // 2), 1]),
        partial(vary, _READS, lambda now: ["auto", 64, 256]),
    ]
