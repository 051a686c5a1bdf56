"""Training loops that take turns in one process, so that a slow moment of the machine slows all of them alike."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from random import Random
from typing import Any, NamedTuple

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from imagenet_opt import machine
from imagenet_opt.probe.fit.kernel_profile import KernelProfile

_LEAST_WARM_STEPS = 8
"""Steps of the first turn, which is not timed: memory, cuDNN's choices and the optimizer's state settle."""
_LEAST_STEPS = 2
"""Least timed steps of a later turn on a GPU. The step before them is not timed, because the host does not run ahead of
the GPU yet. On a CPU, a later turn is one step, because the speed of its cores changes within a few steps."""


Timed = tuple[float, float]
"""Images and seconds."""


def cycle_seconds(window_seconds: float, num_names: int) -> float:
    """Seconds of each of these names in a cycle on a CPU, on average: `window_seconds`, less for more than two names.

    So a cycle of many names takes no longer than one of two: other programs disturb a longer cycle more often.
    """
    return window_seconds * min(1.0, 2 / num_names)


def alternate(
    names: Iterable[str], turn: Callable[[str], Timed | None], *, seconds: float, multiple: int = 1
) -> dict[str, Timed]:
    """Call `turn` for each name, in a random order, then in reverse, and so on, until they have had these seconds on
    average. Returns the sums by name.

    All have the same number of turns, so that the choice of the end favours none; it is a multiple of `multiple`. turn:
    None, if this name can have no further turn; it has no sum.
    """
    sums = {name: (0.0, 0.0) for name in names}
    order = Random().sample(list(sums), len(sums))
    for num_turns in count(1):
        for name in order:
            if (timed := turn(name)) is None:
                del sums[name]
            else:
                sums[name] = sums[name][0] + timed[0], sums[name][1] + timed[1]
        order = [name for name in reversed(order) if name in sums]
        is_long = sum(passed for _, passed in sums.values()) >= seconds * len(sums)
        if not order or (is_long and num_turns % multiple == 0):
            break
    return sums


class Alternation:
    """Training loops by name. Each runs in a thread of its own; one trains for a turn while all others wait.

    loops: a loop calls `begin_step` and `end_step` of its `Turns`, and ends once `begin_step` returns False.
    window_seconds: least timed seconds of a turn on a GPU; on a CPU, see `cycle_seconds`. on_gpu: where the loops
    train. The first turn of a loop only warms it up. failures: by name, the error that ended a loop; such a loop takes
    no more turns. TF32, cuDNN's search and deterministic algorithms are switches of the process, so each turn sets them
    to the values of its loop.
    """

    def __init__(self, loops: Mapping[str, Callable[["Turns"], None]], *, window_seconds: float, on_gpu: bool) -> None:
        if not on_gpu:
            machine.keep_freed_memory()  # before the threads start, or each has a heap of its own
        self._turns = {name: Turns(name, loop, window_seconds) for name, loop in loops.items()}
        self.failures: dict[str, BaseException] = {}
        self._cycle_seconds = 0.0 if on_gpu else cycle_seconds(window_seconds, len(loops))

    def warm_up(self) -> None:
        """Start the loops in their order, each with a turn that is not timed. The speed of a loop may depend by some
        percent on the loops that started before it."""
        for name in self._turns:
            self._turn(name)

    def cycle(self) -> dict[str, Timed]:
        """Give each loop turns, after `warm_up`. Returns the images and seconds of each loop that was timed."""
        names = [name for name in self._turns if name not in self.failures]
        return alternate(names, self._turn, seconds=self._cycle_seconds)

    def _turn(self, name: str) -> Timed | None:
        turns = self._turns[name]
        timed = turns.take()
        if turns.error is not None:
            self.failures[name] = turns.error
        return timed

    def profile(self) -> dict[str, float | None]:
        """On a GPU, give each loop a turn under the profiler. Returns the seconds per step in which kernels ran; None
        if they were not observed."""
        return {name: turns.profile() for name, turns in self._turns.items() if name not in self.failures}

    def __enter__(self) -> "Alternation":
        return self

    def __exit__(self, *_: object) -> None:
        for turns in self._turns.values():
            turns.end()


class Turns:
    """The turns of one training loop, which runs in a thread."""

    def __init__(self, name: str, loop: Callable[["Turns"], None], window_seconds: float) -> None:
        self.error: BaseException | None = None
        self._loop, self._window_seconds = loop, window_seconds
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._may_train, self._has_paused = threading.Semaphore(0), threading.Semaphore(0)
        self._is_warm = self._must_end = False
        self._switches = _Switches.now()
        self._clock = _Clock(torch.device("cpu"))
        self._num_steps = self._num_images = 0
        self._timed: Timed | None = None
        self._kernels: KernelProfile | None = None
        self._kernel_seconds: float | None = None

    def take(self) -> Timed | None:
        """Let the loop train for a turn. Returns its images and seconds; None if the turn was not timed."""
        if self._thread.ident is None:
            self._thread.start()
        process, self._timed = _Switches.now(), None
        self._switches.set()
        self._may_train.release()
        self._has_paused.acquire()
        self._switches = _Switches.now()
        process.set()
        return self._timed

    def profile(self) -> float | None:
        """Let the loop train for a few steps under the profiler. Returns its seconds per step in which kernels ran."""
        self._kernels = KernelProfile()
        self.take()
        return self._kernel_seconds

    def end(self) -> None:
        """End the loop and its thread."""
        self._must_end = True
        if self._thread.is_alive():
            self.take()
            self._thread.join()

    def _run(self) -> None:
        self._may_train.acquire()
        try:
            self._loop(self)
            if not self._must_end:
                self.error = RuntimeError("the training ended by itself")
        except BaseException as error:
            self.error = error
        finally:
            self._has_paused.release()

    def begin_step(self, device: torch.device) -> bool:
        """Wait for the next turn if this one is over. Returns whether to train on."""
        on_cpu = device.type == "cpu"
        if self._is_over(on_cpu):
            self._timed = (self._num_images, self._clock.stop()) if self._is_warm else None
            self._is_warm, self._num_steps = True, 0
            self._has_paused.release()
            self._may_train.acquire()
        if self._num_steps <= (0 if on_cpu else 1):
            self._clock, self._num_images = _Clock(device), 0
        return not self._must_end

    def end_step(self, num_images: int) -> None:
        """Count a step."""
        self._num_steps += 1
        self._num_images += num_images
        if self._kernels is not None and self._kernels.step():
            self._kernel_seconds, self._kernels = self._kernels.stop(), None

    def _is_over(self, on_cpu: bool) -> bool:
        if self._is_warm and on_cpu:
            return self._num_steps > 0
        least = 1 + (_LEAST_STEPS if self._is_warm else _LEAST_WARM_STEPS)
        is_over = self._num_steps >= least and self._clock.host_seconds >= self._window_seconds
        return is_over and self._kernels is None


class TurnsOfFit(Callback):
    """Callback that trains only in the turns of a fit."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        trainer.should_stop = not self._turns.begin_step(trainer.strategy.root_device)  # after one more step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._turns.end_step(len(batch))


class _Clock:
    """Seconds since its creation, by the device."""

    def __init__(self, device: torch.device) -> None:
        self._began, self._begin = time.perf_counter(), _event(device)
        self._device = device

    @property
    def host_seconds(self) -> float:
        """Seconds by the host, which runs ahead of a GPU."""
        return time.perf_counter() - self._began

    def stop(self) -> float:
        """Wait for the device and return its seconds."""
        if self._begin is None:
            return self.host_seconds
        end: Any = _event(self._device)
        end.synchronize()
        return float(self._begin.elapsed_time(end)) / 1000


def _event(device: torch.device) -> torch.cuda.Event | None:
    """An event at the present end of the stream; None for a CPU, which does not run behind the host."""
    if device.type != "cuda":
        return None
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


class _Switches(NamedTuple):
    """Switches of the process that decide how a network is computed."""

    matmul_precision: str
    conv_tf32: bool
    cudnn_benchmark: bool
    cudnn_deterministic: bool
    deterministic_algorithms: int

    @classmethod
    def now(cls) -> "_Switches":
        cudnn, mode = torch.backends.cudnn, torch.get_deterministic_debug_mode()
        return cls(torch.get_float32_matmul_precision(), cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic, mode)

    def set(self) -> None:
        cudnn = torch.backends.cudnn
        torch.set_float32_matmul_precision(self.matmul_precision)
        torch.set_deterministic_debug_mode(self.deterministic_algorithms)
        cudnn.allow_tf32, cudnn.benchmark = self.conv_tf32, self.cudnn_benchmark
        cudnn.deterministic = self.cudnn_deterministic
