"""Runs in the workers of a DataLoader: times each sample, the joining to a batch and the sending, and pauses them."""

import atexit
import linecache
import os
import re
import signal
import sys
import sysconfig
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partialmethod
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from imagenet_opt.diagnosis.measurements import Parts
from imagenet_opt.measure.telemetry.thread_time import ThreadTime, thread_time
from imagenet_opt.private_api import pin_memory

_SAMPLE_SECONDS = 0.005  # of CPU time between two looks at the line that a worker computes
_PAUSE_SECONDS = 0.002
_FEEDER = "QueueFeederThread"
"""Name that multiprocessing gives to the thread that pickles batches."""
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
_DECODERS = re.compile(
    r"PIL\.(ImageFile|\w+Plugin)|imagenet_opt\.data\.decode|torchvision\.io|nvidia\.|simplejpeg|turbojpeg|imageio|tifffile|av\b"
)
_DECODES = re.compile(r"decode|imread|read_image|Image\.open")
"""In a line of the user's code that calls a decoder written in C."""


class TimedBatch:
    """A batch, and what its worker spent for it. made_at: time of `time.perf_counter`, which all processes share."""

    def __init__(self, batch: Any, parts: Parts, spent: "_Spent") -> None:
        self.batch, self.parts, self.made_at, self.pid = batch, parts, time.perf_counter(), os.getpid()
        self.num_samples, self.pixels = spent.num_samples, spent.pixels
        self.lines, self.decoding = dict(spent.lines), spent.decoding

    def pin_memory(self) -> "TimedBatch":
        self.batch = pin_memory(self.batch)
        return self


class _Spent:
    """What this process has spent since its last batch."""

    def __init__(self) -> None:
        self.samples, self.helpers, self.num_samples, self.pixels = ThreadTime(), 0.0, 0, 0
        self.lines: defaultdict[str, float] = defaultdict(float)
        self.decoding = 0.0

    def timed(self, call: Callable[..., Any], *arguments: Any, num: int = 1) -> Any:
        """Call it for `num` samples. CPU time of other threads, such as a decoder's, is no waiting."""
        began, cpu = thread_time(), time.process_time()
        began = began._replace(wall=time.perf_counter())  # a wait for a CPU amid these calls is no wait for the sample
        try:
            return call(*arguments)
        finally:
            taken = thread_time().since(began)
            others = max(0.0, time.process_time() - cpu - taken.cpu)
            self.samples, self.num_samples = self.samples.plus(taken), self.num_samples + num
            self.helpers += min(others, taken.waiting)


_spent = _Spent()
_begun = False
_looked_at = 0.0  # CPU time of this process
_fed = ThreadTime()


def _finished(batch: Any, collating: ThreadTime) -> TimedBatch:
    global _spent
    spent, _spent = _spent, _Spent()
    computing = min(spent.samples.wall, spent.samples.cpu + spent.helpers)
    queued = min(spent.samples.queued, spent.samples.wall - computing)  # the kernel's counts are a little late
    waiting = spent.samples.wall - computing - queued
    joining = collating.cpu
    if torch.get_num_threads() == 1:  # else the rest is waits for torch's threads, which wait for a CPU
        joining = max(joining, collating.wall - collating.queued)
    sending = _feeder_time()
    queued += max(0.0, collating.wall - joining) + sending.queued
    return TimedBatch(batch, Parts(waiting, computing, queued, joining, sending.cpu), spent)


def _feeder_time() -> ThreadTime:
    """Since the last call, of the thread that pickles batches."""
    global _fed
    feeder = next((thread for thread in threading.enumerate() if thread.name == _FEEDER), None)
    if feeder is None or not get_worker_info():
        return ThreadTime()
    try:
        with open(f"/proc/self/task/{feeder.native_id}/schedstat") as file:
            cpu, queued, _ = map(int, file.read().split())
    except (OSError, ValueError):
        return ThreadTime()
    before, _fed = _fed, ThreadTime(0.0, cpu / 1e9, queued / 1e9)
    return _fed.since(before)


class TimedSamples:
    """A map-style dataset whose samples are timed. pause: shared by all processes; workers wait while it is 1."""

    def __init__(self, timed: Any, pause: Tensor) -> None:
        vars(self).update(timed=timed, pause=pause)

    def __getitem__(self, index: Any) -> Any:
        _begin(self.pause)
        return _spent.timed(self.timed.__getitem__, index, num=len(index) if isinstance(index, list) else 1)

    def __len__(self) -> int:
        return len(self.timed)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.timed, name)
        return self._get_many if name == "__getitems__" and callable(value) else value

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.timed, name, value)

    def __reduce__(self) -> Any:
        return type(self), (self.timed, self.pause)

    def _get_many(self, indices: list[Any]) -> Any:
        _begin(self.pause)
        return _spent.timed(self.timed.__getitems__, indices, num=len(indices))


class TimedStream(TimedSamples, IterableDataset[Any]):
    """The same of an iterable dataset."""

    def __iter__(self) -> Iterator[Any]:
        samples = iter(self.timed)
        while True:
            _begin(self.pause)
            try:
                sample = _spent.timed(next, samples)
            except StopIteration:
                return
            yield sample


class TimedCollate:
    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self.collate = collate

    def __call__(self, samples: Any) -> TimedBatch:
        began = thread_time()
        batch = _collated(self.collate, samples)
        return _finished(batch, thread_time().since(began))


def _collated(collate: Callable[[Any], Any], samples: Any) -> Any:
    return collate(samples)


def _begin(pause: Tensor) -> None:
    global _begun, _looked_at
    if not _begun and get_worker_info():
        _begun = True
        _count_pixels()
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGPROF) == signal.SIG_DFL:
            _looked_at = time.process_time()
            signal.signal(signal.SIGPROF, _look)
            signal.siginterrupt(signal.SIGPROF, False)
            signal.setitimer(signal.ITIMER_PROF, _SAMPLE_SECONDS, _SAMPLE_SECONDS)
            atexit.register(signal.setitimer, signal.ITIMER_PROF, 0)  # later on, the signal would kill a spawned worker
    parent = os.getppid()
    while pause.item():
        time.sleep(_PAUSE_SECONDS)
        if os.getppid() != parent:  # it was killed, and nobody ends the pause
            os._exit(1)


def _count_pixels() -> None:
    """Let Pillow count the pixels that it decodes in this worker."""
    if (files := sys.modules.get("PIL.ImageFile")) is None:
        return
    files.ImageFile.load = partialmethod(_counted, files.ImageFile.load)


def _counted(image: Any, load: Callable[[Any], Any]) -> Any:
    if getattr(image, "tile", None):
        _spent.pixels += image.size[0] * image.size[1]
    return load(image)


def _look(_: int, frame: FrameType | None) -> None:
    """Note where a worker computes: the innermost line of the user and the function that it called. A call of C, which
    delays this look, gets all CPU time since the last one."""
    global _looked_at
    now = time.process_time()
    passed, _looked_at = now - _looked_at, now
    function, user, decodes = "", "", False
    while frame is not None:
        code, module = frame.f_code, str(frame.f_globals.get("__name__", ""))
        if module == __name__ and code is not _counted.__code__:
            if code in (_Spent.timed.__code__, _collated.__code__):
                _spent.lines[user or function] += passed
                _spent.decoding += decodes * passed
            return
        function = function or code.co_qualname
        decodes = decodes or bool(_DECODERS.match(module))
        if not user and module != __name__ and not code.co_filename.startswith(_LIBRARIES):
            number = frame.f_lineno or 0  # None in instructions that belong to no line
            decodes = decodes or bool(_DECODES.search(linecache.getline(code.co_filename, number)))
            user = f"{Path(code.co_filename).name}:{number} {function}"
        frame = frame.f_back


def new_pause() -> Tensor:
    pause: Tensor = torch.zeros(1, dtype=torch.uint8).share_memory_()
    return pause
