"""The order and the length of the experiments, on a testbed whose experiments take no time."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from imagenet_opt.config.compose import composed
from imagenet_opt.doctor import reading
from imagenet_opt.doctor.diagnosis import STAGES
from imagenet_opt.doctor.evidence import Evidence
from imagenet_opt.doctor.examination import NUM_EXPERIMENTS, Examination
from imagenet_opt.doctor.verdict import conclude, is_judged
from imagenet_opt.errors import ConfigError, WorkerDied
from imagenet_opt.measure.stats.rate import Ceiling
from imagenet_opt.measure.storage.page_cache import Residency
from imagenet_opt.measure.storage.read_depths import DepthReads
from imagenet_opt.measure.telemetry.gpu import GpuState
from imagenet_opt.probe.fit_timer import FitTiming
from imagenet_opt.probe.testbed import Testbed
from imagenet_opt.probe.throughput import Span
from tests.conftest import write_images
from tests.doctor.diagnoses import make_facts

COLD = {"reads_in_flight": 8.0, "num_workers": 2.0, "batch_size": 8.0}


class Brief(Testbed):
    """Its experiments take no time, and note how long they were to take."""

    def __init__(self, *overrides: str) -> None:
        super().__init__(composed(overrides))
        self.spans: list[float] = []
        self.batches: list[int | None] = []

    def decode(self, span: Span, num_workers: int | None = None) -> Ceiling:
        return self._noted(span)

    def load(self, index: Any, span: Span, *, cold: bool, batch_size: int | None = None) -> Ceiling:
        self.batches.append(batch_size)
        return self._noted(span)

    def compute(self, span: Span, *, beside: bool, from_files: bool = True) -> FitTiming:
        self._noted(span)
        return timing_of_ten_steps()

    def train(self, index: Any, span: Span, *, cold: bool) -> FitTiming:
        self._noted(span)
        return timing_of_ten_steps()

    def copy(self, span: Span) -> Ceiling | None:
        return self._noted(span) if self.device.type == "cuda" else None

    def _noted(self, span: Span) -> Ceiling:
        self.spans.append(span.seconds)
        return Ceiling((100.0,) * 7, COLD)


def timing_of_ten_steps() -> FitTiming:
    """Ten steps of 0.1 s and 8 images, of which the device computes 0.09 s."""
    return FitTiming(
        stamps=[0.1 * i for i in range(11)],
        num_images=[0] + [8] * 10,
        phases={"fetch": 0.01},
        device_seconds=0.09,
        waits=Counter(),
        num_ordinary=10,
        gpu_state=GpuState(index=0, name="a GPU"),
    )


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("examined"), num_classes=3, per_class=40)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds at each depth, of reads that take none."""
    seconds: list[float] = []

    def read_at_depths(
        read: Any, groups: Any, depths: Any, *, seconds: float, patience_seconds: float = 0.0
    ) -> tuple[DepthReads, ...]:
        asked.extend([seconds] * len(depths))
        return tuple(DepthReads(depth, (float(depth),) * 7, 1.0, 0.1, 0.1, 0.1, 9, 0, 0.1) for depth in depths)

    asked = seconds
    monkeypatch.setattr(reading, "read_at_depths", read_at_depths)
    return seconds


def examined(testbed: Brief, budget_seconds: float = 90.0) -> tuple[Evidence, list[str]]:
    said: list[str] = []
    return Examination(testbed, budget_seconds=budget_seconds, announce=said.append).evidence(command="mine"), said


def brief(root: Path) -> Brief:
    small = ("data.batch_size=8", "data.image_size=32", "data.num_workers=1", "trainer.accelerator=cpu")
    return Brief(f"data.root={root}", f"data.cache_dir={root}/cache", "model.name=test_resnet", *small)


def test_the_budget_is_shared_out_in_proportion(root: Path, reads: list[float], checked: None) -> None:
    found = []
    for budget in (90.0, 30.0):
        testbed = brief(root)
        examined(testbed, budget)
        found.append([*testbed.spans, *reads])
        reads.clear()
    long, short = found
    assert long == pytest.approx([3 * seconds for seconds in short])
    assert 0.5 * 90 < sum(long) <= 90


def test_every_experiment_is_announced_and_has_its_ceiling(root: Path, reads: list[float], checked: None) -> None:
    seen, said = examined(brief(root))
    assert len(said) == NUM_EXPERIMENTS
    assert "checking the machine" in said[0]
    assert seen.ceilings.keys() == STAGES.keys() - {"copy", "copy_overlapped"}
    assert seen.environment and all(finding.environment for finding in seen.environment)
    assert seen.facts.accelerator_utilization == pytest.approx(0.9)
    depths = {
        name: [depth for depth, _ in seen.measurements.curves[name]]
        for name in ("reads_in_flight", "reads_in_flight_cached")
    }
    assert depths == {"reads_in_flight": [1, 4, 16, 64, 256], "reads_in_flight_cached": [1, 4, 16]}
    assert seen.facts.cold_passes == 8 * (7 + 3) * 2 / 120, "of 7 windows, and the first three batches of 2 workers"
    assert is_judged(conclude(seen))


def test_what_the_machine_lacks_is_said_before_the_first_experiment(
    root: Path, reads: list[float], checked: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("imagenet_opt.machine.free_shared_memory", lambda: 2**16)
    told: list[str] = []

    def announce(what: str) -> None:
        told.append(what + ": " + capsys.readouterr().err)

    Examination(brief(root), budget_seconds=90, announce=announce).evidence(command="mine")
    assert "small_shared_memory: 1 workers" in told[1]


def test_where_no_kernel_is_seen_it_is_said(root: Path, checked: None) -> None:
    testbed = brief(root)
    testbed.device = torch.device("cuda", 0)
    blind = Examination(testbed, budget_seconds=90, announce=lambda what: None)
    blind.facts = make_facts()
    blind._compute()
    assert blind.facts.no_kernels_reason is not None
    assert blind.facts.no_kernels_reason.startswith("the profiler recorded no kernel; CUPTI needs permission")


@pytest.mark.parametrize("stage", ["decode", "load", "compute", "train"])
def test_one_experiment_that_fails_leaves_the_others(
    stage: str, root: Path, reads: list[float], checked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate\nmore")
            if stage == "compute"
            else (WorkerDied("/dev/shm is full"))
        )

    monkeypatch.setattr(Brief, stage, fail)
    seen, said = examined(brief(root))
    assert len(said) == NUM_EXPERIMENTS
    gone = {"decode": "decode", "load": "loader", "compute": "gpu", "train": "full"}[stage]
    assert seen.ceilings.keys() == {
        name for name in STAGES.keys() - {"copy", "copy_overlapped"} if not name.startswith(gone)
    }
    reason = "CUDA out of memory. Tried to allocate" if stage == "compute" else "/dev/shm is full"
    assert seen.facts.not_measured is not None and seen.facts.not_measured.startswith(f"{reason} (")
    blind = [finding for finding in seen.environment if reason in finding.evidence]
    assert blind and all(finding.fired is None for finding in blind)
    found = conclude(seen)
    assert not is_judged(found) and reason in found.sentence


def test_whether_a_mount_is_lazy_may_stay_unknown(
    root: Path, reads: list[float], checked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from imagenet_opt.measure.storage.page_cache import Eviction, Residency

    unknown = Eviction(Residency(None, "nobody tells"), 9)
    testbed = brief(root)
    monkeypatch.setattr(testbed.samples, "evict", lambda rows: unknown)
    seen, _ = examined(testbed)
    assert seen.facts.lazy is None
    assert seen.facts.cold_verified is False and seen.facts.cold_evidence == "unverified: nobody tells"


def test_stages_are_left_out_whose_files_do_not_stay_in_memory(
    root: Path, reads: list[float], checked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a mount that caches nothing: what is called "in memory" would be read from the mount."""
    testbed = brief(root)
    monkeypatch.setattr(testbed.samples, "kept", lambda: Residency(0.02, "cachestat"))
    seen, said = examined(testbed)
    assert len(said) == NUM_EXPERIMENTS
    assert not {"loader_warm", "full_warm", "storage_cached"} & seen.ceilings.keys()
    assert "recently read files are not in this machine's memory (2% of them" in str(seen.facts.memory_evidence)
    assert seen.facts.not_measured is None and is_judged(conclude(seen))


def test_where_nothing_tells_what_is_in_memory_late_answers_do(
    root: Path, reads: list[float], checked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reads of this file take 0.1 s each."""
    testbed = brief(root)
    monkeypatch.setattr(testbed.samples, "kept", lambda: Residency(None, "nobody tells"))
    seen, _ = examined(testbed)
    assert "a repeated read takes 100 ms" in str(seen.facts.memory_evidence) and "loader_warm" not in seen.ceilings


@pytest.mark.parametrize(("rate", "batch"), [(1e6, 256), (100.0, 66), (0.1, 8)])
def test_a_slow_storage_is_read_in_smaller_batches(rate: float, batch: int, root: Path) -> None:
    """In 4 x 1 s at 100 images/s 400 images come: six batches of one worker hold 66 each."""
    small = ("data.batch_size=256", "data.num_workers=1", "trainer.accelerator=cpu")
    testbed = Brief(f"data.root={root}", f"data.cache_dir={root}/cache", *small)
    examination = Examination(testbed, budget_seconds=30, announce=lambda what: None)
    assert examination._batch_in(Span(1)) == 256, "nothing is known of the storage"
    examination.ceilings["storage_cold"] = Ceiling((rate,))
    assert examination._batch_in(Span(1)) == batch


def test_a_run_that_would_take_too_long_is_not_begun(root: Path) -> None:
    """3 batches of 8 images at 0.5 images/s take 48 s, of 30 s."""
    examination = Examination(brief(root), budget_seconds=30, announce=lambda what: None)
    examination.ceilings["loader_cold"] = Ceiling((0.5,))
    with pytest.raises(ConfigError, match=r"^not measured: storage too slow for the budget .* --budget to 48s$"):
        examination._check_time_for_run()
    examination.ceilings["loader_cold"] = Ceiling((5.0,))
    examination._check_time_for_run()


def test_no_stage_is_faster_than_the_cpus_can_decode(root: Path) -> None:
    examination = Examination(brief(root), budget_seconds=30, announce=lambda what: None)
    examination.facts = make_facts(usable_cpus=2, megapixels=0.2)
    with pytest.raises(ConfigError, match="1,053,788 img/s, but 2 CPUs cannot decode more than 20,000"):
        examination._note_ceiling("loader_cold", Ceiling((1_053_788.0,)))
    assert not examination.ceilings
