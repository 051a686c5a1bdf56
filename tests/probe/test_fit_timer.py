"""Timing of steps of the real trainer on a loader of one batch, and on a device with a clock of its own."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from imagenet_opt.config.build import build_model, build_trainer
from imagenet_opt.data.batch import Batch
from imagenet_opt.measure.telemetry import cuda_clock
from imagenet_opt.probe import fit_timer
from imagenet_opt.probe.device_steps import random_batch
from imagenet_opt.probe.fit_timer import FitTimer, FitTiming
from imagenet_opt.probe.resident_loader import ResidentLoader
from imagenet_opt.probe.throughput import fit_ceiling
from imagenet_opt.probe.throwaway_run import only, run_folder
from tests.config.configs import tiny

pytestmark = pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`")


class Queue(ResidentLoader):
    """A loader of one worker, which has made batch `number` after `number * seconds`; from batch 10 on, `pause` later,
    as its queue was full while the network was compiled. A step takes a millisecond of `now`."""

    num_ready, num_workers, prefetch_factor, num_parts = 0, 1, 20, 1
    totals = pop_metrics = dict

    def __init__(self, batch: Batch, seconds: float, *, reads: int, pause: float) -> None:
        super().__init__(replace(batch, stats=batch.stats._replace(reads_in_flight=reads)))
        self.seconds, self.pause, self.now = seconds, pause, 0.0

    def __iter__(self) -> Iterator[Batch]:
        for number, batch in enumerate(super().__iter__()):
            self.now += 1e-3
            made_at = number * self.seconds + (number >= 10) * self.pause
            yield replace(batch, stats=batch.stats._replace(made_at=made_at))


@pytest.fixture
def fit(images_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., FitTiming]:
    """The timing of a fit on a Queue, by its clock."""

    def fit(*, seconds: float, reads: int = 1, pause: float = 0.0) -> FitTiming:
        first_step_ended = 10 * seconds + pause / 2 if pause else 0.0
        timer = FitTimer(seconds=0.0, limit_seconds=60, multiple=1, sees_kernels=True, sees_waits=True)
        alone = only(tiny(tmp_path, images_root, "model.num_classes=3"), callbacks=())
        with run_folder(alone, within=tmp_path) as config:
            trainer = build_trainer(config)
            trainer.callbacks.append(timer)  # type: ignore[attr-defined]
            queue = Queue(random_batch(config, trainer), seconds, reads=reads, pause=pause)
            clock = SimpleNamespace(
                perf_counter=lambda: queue.now, process_time=lambda: 0.0, monotonic=lambda: first_step_ended
            )
            for module in (fit_timer, cuda_clock):
                monkeypatch.setattr(module, "time", clock)
            trainer.fit(build_model(config, global_batch=6), train_dataloaders=queue)
        return timer.timing

    return fit


@pytest.mark.parametrize(
    ("seconds", "pause", "rate"), [(0.0, 0.0, 6000), (5e-4, 0.0, 6000), (0.01, 0.0, 600), (5e-4, 8.0, 6000)]
)
def test_the_rate_is_of_steps_and_loader_whatever_was_made_before(
    seconds: float, pause: float, rate: float, fit: Callable[..., FitTiming]
) -> None:
    """Steps of six images take a millisecond. A slower loader made the batches earlier; its rate counts. A long first
    step does not lower the rate."""
    assert fit_ceiling(fit(seconds=seconds, pause=pause)).images_per_second == pytest.approx(rate, rel=0.05)


@pytest.mark.parametrize(("reads", "num_warm", "num_steps"), [(1, 3, 8), (16, 28, 51)])
def test_the_warm_up_uses_the_images_in_preparation_if_files_are_read_ahead(
    reads: int, num_warm: int, num_steps: int, fit: Callable[..., FitTiming]
) -> None:
    """20 batches of six images are ahead, and in files two times 16 images. Two batches of the warm-up come before."""
    timing = fit(seconds=0.0, reads=reads)
    assert (len(timing.launch_seconds), len(timing.step_seconds)) == (num_warm, num_steps)
    assert timing.phases and timing.kernel_seconds is None
