"""The order and the length of the experiments, on a testbed whose experiments take no time."""

from collections import Counter
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from omegaconf import DictConfig

from imagenet_opt.config.compose import composed
from imagenet_opt.doctor import examination as module
from imagenet_opt.doctor.causes import judge
from imagenet_opt.doctor.evidence import Evidence
from imagenet_opt.doctor.examination import EXPERIMENTS, UNITS, Examination, main_cpu_seconds, planned_seconds
from imagenet_opt.doctor.first_look import PackForecast
from imagenet_opt.doctor.measurements import STAGES
from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.stats.rate import Ceiling
from imagenet_opt.measure.storage.page_cache import Residency
from imagenet_opt.measure.storage.read_depths import DepthReads
from imagenet_opt.measure.telemetry.gpu import GpuState
from imagenet_opt.probe.fit.fit_timer import FitTiming
from imagenet_opt.probe.testbed import Testbed
from imagenet_opt.probe.throughput import Span
from tests.conftest import write_images

COLD = {"reads_in_flight": 8.0, "num_workers": 2.0, "batch_size": 8.0}
WITHOUT_COPIES = STAGES.keys() - {"copy", "copy_overlapped"}


@cache
def small_config() -> DictConfig:
    small = ("data.batch_size=8", "data.image_size=32", "data.num_workers=1", "trainer.accelerator=cpu")
    return composed(("data.root=.", "data.train_folder=.", "data.val_folder=.", "model.name=test_resnet", *small))


class Brief(Testbed):
    """Its experiments take no time. spans: seconds that they should take. changes: of the configuration."""

    def __init__(self, root: Path, **changes: Any) -> None:
        config = small_config().copy()
        config.trainer.devices = changes.pop("devices", "auto")
        folders = {"root": str(root), "cache_dir": f"{root}/cache", "train_folder": "train", "val_folder": "val"}
        config.data.update(folders | changes)
        super().__init__(config)
        self.spans: list[float] = []

    def decode(self, span: Span, num_workers: int | None = None) -> Ceiling:
        self.spans.append(span.seconds)
        return Ceiling((100.0,) * 7, COLD)

    def load(self, index: Any, span: Span, *, cold: bool, batch_size: int | None = None) -> Ceiling:
        return self.decode(span)

    def compute(self, span: Span, *, beside: bool, from_files: bool = True) -> FitTiming:
        return self.train(None, span, cold=False)

    def train(self, index: Any, span: Span, *, cold: bool) -> FitTiming:
        """Ten steps of 0.1 s and 8 images; the device computes for 0.09 s of each."""
        self.spans.append(span.seconds)
        return FitTiming(
            stamps=[0.1 * i for i in range(11)],
            num_images=[0] + [8] * 10,
            phases={"fetch": 0.01},
            device_seconds=0.09,
            waits=Counter({"item at mine.py:7": 5}),
            num_ordinary=10,
            cpu_seconds=0.02,
            gpu_state=GpuState(index=0, name="a GPU"),
        )


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("examined"), num_classes=3, per_class=22)


@pytest.fixture
def testbed(root: Path) -> Brief:
    return Brief(root)


@pytest.fixture(autouse=True)
def latencies(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Seconds of reads "cold" and "repeated"; the reads take no time."""
    seconds = {"cold": 0.1, "repeated": 0.001}

    def read_at_depths(read: Any, groups: Any, depths: tuple[int, ...], **_: Any) -> tuple[DepthReads, ...]:
        latency = seconds["cold" if len(depths) == 5 else "repeated"]
        return tuple(DepthReads(depth, (float(depth),) * 7, 1.0, latency, 0.1) for depth in depths)

    monkeypatch.setattr(module, "read_at_depths", read_at_depths)
    packed = SimpleNamespace(speedup=SimpleNamespace(ratio=2.0), bytes_ratio=0.5)
    monkeypatch.setattr(module, "forecast", lambda testbed, options: packed)
    return seconds


def examined(testbed: Brief) -> tuple[Evidence, list[str]]:
    """The evidence, and the announced experiments."""
    announced: list[str] = []
    examination = Examination(testbed, budget_seconds=UNITS, announce=announced.append)
    return examination.evidence(command="mine"), announced[1:]


def test_every_experiment_is_announced_and_has_its_ceiling(testbed: Brief) -> None:
    evidence, announced = examined(testbed)
    assert announced == list(EXPERIMENTS)
    assert evidence.ceilings.keys() == WITHOUT_COPIES
    assert [depth for depth, _ in evidence.curves["reads_in_flight"]] == [1, 4, 16, 64]  # fewer than the images
    assert evidence.busy_share == pytest.approx(0.9)
    assert evidence.requests_in_flight == 16.0
    assert evidence.fact("gpu", "main_cpu_seconds") == 0.02
    assert (evidence.waits_per_step, evidence.waits) == (0.5, ("item at mine.py:7",))
    assert judge(evidence).is_judged and evidence.pack == PackForecast("for=176", 2.0, 0.5)
    planned = np.subtract(planned_seconds(UNITS), planned_seconds(0))
    assert sum(testbed.spans) == pytest.approx(sum(planned[5:]) - 2.0 - 1.0, rel=0.1), "one worker, and no copy"


def test_a_cut_loader_is_noted_and_its_workers_are_those_that_ran(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """8 of 32 configured workers have a CPU each; 64 KiB of /dev/shm have room for one batch ahead of one worker."""
    monkeypatch.setattr("imagenet_opt.machine.usable_cpus", lambda: 8)
    monkeypatch.setattr("imagenet_opt.machine.free_shared_memory", lambda: 2**16)
    evidence, _ = examined(Brief(root, num_workers=32, prefetch_factor=4))
    setup = evidence.setup
    assert (setup.budget.asked_workers, setup.num_workers, setup.budget.is_cut) == (8, 1, True)
    assert [workers for workers, _ in evidence.curves["workers"]] == [COLD["num_workers"]]


def test_one_of_several_processes_has_its_share(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imagenet_opt.machine.usable_cpus", lambda: 8)
    monkeypatch.setattr("imagenet_opt.machine.cpu_limits", lambda: {"affinity": 8})
    testbed = Brief(root, devices=4, num_workers="auto")
    setup = Examination(testbed, budget_seconds=90, announce=lambda name: None).setup
    assert (setup.num_processes, setup.usable_cpus, setup.num_workers) == (4, 2, 2)


def test_waits_that_spin_are_no_needed_cpu_time() -> None:
    """A step of 0.3 s; the launches take 30 ms of a CPU, the callbacks 2 ms."""
    phases = {"fetch": 0.01, "step": 0.28, "device": 0.0, "callback Mine": 0.002}
    timing = FitTiming(cpu_seconds=0.3, launch_seconds=[9.0, 0.03, 0.03], phases=phases)
    assert main_cpu_seconds(timing, spins=True) == pytest.approx(0.032)
    assert main_cpu_seconds(timing, spins=False) == 0.3


@pytest.mark.parametrize(
    ("kept", "reason"),
    [
        (Residency(0.02, "mincore"), "2% of them are there; mincore"),
        (Residency(1.0, "mincore"), "a repeated read takes 100 ms"),  # its opening waits for a server
    ],
)
def test_stages_are_left_out_whose_files_do_not_stay_in_memory(
    kept: Residency, reason: str, testbed: Brief, latencies: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a mount that caches nothing: files called "in memory" would be read from the mount."""
    latencies["repeated"] = 0.1
    monkeypatch.setattr(testbed.samples, "kept", lambda: kept)
    monkeypatch.setattr(testbed.samples, "residency", lambda: kept)
    evidence, _ = examined(testbed)
    assert not {"loader_warm", "full_warm", "storage_cached"} & evidence.ceilings.keys()
    assert reason in evidence.left_out and evidence.is_cold
    assert not evidence.failed and judge(evidence).is_judged


def test_a_slow_storage_is_read_in_smaller_batches(root: Path) -> None:
    """In 4 x 1 s at 100 images/s 400 images arrive: six batches of one worker hold 66 each."""
    examination = Examination(Brief(root, batch_size=256), budget_seconds=30, announce=lambda name: None)
    assert examination.batch_in(Span(1)) == 256
    for rate, batch in ((1e6, 256), (100.0, 66), (0.1, 8)):
        examination.ceilings["storage_cold"] = Ceiling((rate,))
        assert examination.batch_in(Span(1)) == batch


def test_a_run_that_would_take_too_long_is_not_begun(testbed: Brief) -> None:
    """3 batches of 8 images at 0.5 images/s take 48 s, of 30 s."""
    examination = Examination(testbed, budget_seconds=30, announce=lambda name: None)
    examination.ceilings["loader_cold"] = Ceiling((0.5,))
    with pytest.raises(ConfigError, match="--budget to 48s"):
        examination.train_from_storage(Span(1, longest=30))
    assert not testbed.spans
