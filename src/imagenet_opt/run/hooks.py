"""What a callback, a loader or a data module may have beside Lightning's hooks, and who asks for it.

Each class has the names that one caller needs; whatever has them is asked, by `isinstance`, without a base class. The
loggers have a base class, `run/loggers/run_logger.py`.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

from lightning.pytorch import Callback, LightningModule, Trainer

from imagenet_opt.measure.rehearsal import DeviceTimeline
from imagenet_opt.object_storage import FoundObject


def callbacks_of(trainer: Trainer) -> list[Callback]:
    """The list itself; Lightning does not declare its type."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    return callbacks


@runtime_checkable
class ShowsRows(Protocol):
    """A callback that shows the rows of metrics. It calls `rows_of` of run/rows.py in its `setup`."""

    def on_row(self, trainer: Trainer, batch: int, numbers: dict[str, float]) -> None:
        """Called when a row was written. batch: number of its batch in the epoch, from 1."""


@runtime_checkable
class FreesMemory(Protocol):
    """A callback that can free memory of the device."""

    def on_out_of_memory(self, trainer: Trainer, pl_module: LightningModule, batch: Any) -> None:
        """Called by model/classifier.py when memory has run out, before `batch` is repeated; in training the module
        then has its new `micro_batch_size`."""


@runtime_checkable
class Summarizes(Protocol):
    """A callback with numbers of the whole run, by metric name, for training/summary.py."""

    def summary(self) -> dict[str, float]: ...


@runtime_checkable
class Compiles(Protocol):
    """A callback that compiles the network, or captures CUDA graphs: seconds so far, None without any. Throughput and
    probe/fit_timer.py leave these seconds out."""

    @property
    def compile_seconds(self) -> float | None: ...

    @property
    def cuda_graph_seconds(self) -> float | None: ...


def compile_seconds(compilers: Iterable[Compiles]) -> float | None:
    """Seconds so far in which these callbacks compiled the network and captured CUDA graphs; None without either."""
    values = [value for each in compilers for value in (each.compile_seconds, each.cuda_graph_seconds)]
    durations = [seconds for seconds in values if seconds is not None]
    return sum(durations) if durations else None


@runtime_checkable
class SimulatesDevice(Protocol):
    """A callback that simulates a device on a timeline, whose seconds count as those of the device. simulated: its
    name in messages."""

    timeline: DeviceTimeline

    @property
    def simulated(self) -> str: ...


@runtime_checkable
class ResizesImages(Protocol):
    """A callback that changes the size of training images. data/datamodule.py plans memory for the largest."""

    @property
    def largest_size(self) -> int: ...


@runtime_checkable
class KeepsCheckpoints(Protocol):
    """A callback that writes checkpoints, also to a mirror. training/build_run.py says which objects of the mirror may
    be `replaced`, and on which values the scores of validations depend."""

    mirror: str | None
    replaced: list[FoundObject]
    scored_with: dict[str, Any]


@runtime_checkable
class MeasuredLoader(Protocol):
    """A loader that measures itself: data/prefetcher.py. num_parts: of a batch, each of which one worker makes."""

    @property
    def num_workers(self) -> int: ...

    @property
    def prefetch_factor(self) -> int: ...

    @property
    def num_parts(self) -> int: ...

    @property
    def num_ready(self) -> int:
        """Number of finished batches that were not requested yet."""

    def totals(self) -> dict[str, float]:
        """Sums over all batches so far, by name."""

    def pop_metrics(self) -> dict[str, float]:
        """Metrics since the last call, by name."""


@runtime_checkable
class Identified(Protocol):
    """A data module whose facts must be equal in all processes; run/stop/ranks.py compares them."""

    def identity(self) -> Mapping[str, object]: ...
