"""Means of what is sampled in the background of a fit, with a source whose n-th reading shows n GiB."""

import pickle
import threading
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from imagenet_opt.callbacks.host_utilization import HostUtilization
from tests.callbacks.conftest import Plain, Project

KEYS = {"host/cpu_percent", "host/memory_used_gib"}
OTHERS = "host/other_programs_percent"
TIMEOUT = 30


class Memory:
    """psutil's virtual_memory of a machine whose n-th reading shows n GiB in use."""

    def __init__(self) -> None:
        self.num_reads = 0
        self.read = threading.Condition()

    def __call__(self) -> SimpleNamespace:
        with self.read:
            self.num_reads += 1
            self.read.notify_all()
            return SimpleNamespace(total=2**50, available=2**50 - self.num_reads * 2**30)

    def wait_for_samples(self, count: int) -> None:
        with self.read:
            # One more: a reading is surely counted once the next one has begun.
            wanted = self.num_reads + count + 1
            assert self.read.wait_for(lambda: self.num_reads >= wanted, TIMEOUT)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    memory = Memory()
    monkeypatch.setattr(psutil, "virtual_memory", memory)
    return memory


class Patient(Plain):
    """Each step but the first lasts for at least two samples, and the step `fail_at` raises."""

    def __init__(self, memory: Memory, fail_at: int | None = None) -> None:
        super().__init__()
        self.memory, self.fail_at, self.is_first = memory, fail_at, True

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if batch_idx == self.fail_at:
            raise RuntimeError("out of luck")
        if self.is_first:
            assert "host-sampler" not in [thread.name for thread in threading.enumerate()]
        else:
            self.memory.wait_for_samples(2)
        self.is_first = False
        return super().training_step(batch, batch_idx)


def fit(
    project: Project, module: Plain, callback: HostUtilization, **options: Any
) -> list[tuple[int, dict[str, float]]]:
    project.fit(callback, module=module, limit_val_batches=0, **options)
    return [(step, metrics) for step, metrics in project.logger.rows if KEYS & metrics.keys()]


def windows(rows: list[tuple[int, dict[str, float]]]) -> list[float]:
    """How many samples each row's mean is over, if they follow each other without a gap from reading 2 on.

    The mean of the readings a to b is (a + b) / 2, as the n-th shows n GiB.
    """
    first, sizes = 2.0, []
    for _, metrics in rows:
        last = 2 * metrics["host/memory_used_gib"] - first
        sizes.append(last - first + 1)
        first = last + 1
    return sizes


@pytest.mark.parametrize("accumulate", [1, 2])
def test_each_logged_row_holds_the_mean_since_the_last_one(project, memory: Memory, accumulate: int) -> None:
    callback = HostUtilization(interval_seconds=0.001)
    rows = fit(project, Patient(memory), callback, accumulate_grad_batches=accumulate, max_steps=12, max_epochs=3)
    assert [step for step, _ in rows] == [4, 9]
    assert all(metrics.keys() >= KEYS for _, metrics in rows)
    assert all(0 <= metrics["host/cpu_percent"] <= 100 for _, metrics in rows)
    sizes = windows(rows)
    assert all(size == int(size) for size in sizes)
    assert sizes[0] >= 2 * (5 * accumulate - 1) and sizes[1] >= 2 * 5 * accumulate, "sampled after the first step"
    assert sum(sizes) < memory.num_reads
    # Since the first step: the readings 2 to n, where the last one may not have been counted any more.
    summary = callback.summary()
    assert summary.keys() == KEYS | {OTHERS}
    assert 0 <= summary[OTHERS] <= summary["host/cpu_percent"], "this fit uses CPUs too"
    assert summary["host/memory_used_gib"] in {(2 + n) / 2 for n in (memory.num_reads, memory.num_reads - 1)}


def test_the_thread_ends_with_the_fit_and_after_an_error(project, memory: Memory) -> None:
    callback = HostUtilization(interval_seconds=0.001)
    fit(project, Patient(memory), callback, max_steps=2)
    assert "host-sampler" not in [thread.name for thread in threading.enumerate()]
    with pytest.raises(RuntimeError, match="out of luck"):
        fit(project, Patient(memory, fail_at=2), callback, max_steps=3)
    assert "host-sampler" not in [thread.name for thread in threading.enumerate()]
    assert callback.summary().keys() == KEYS


def test_a_source_that_breaks_does_not_stop_training(project, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise OSError("no /proc")

    monkeypatch.setattr(psutil, "virtual_memory", broken)
    callback = HostUtilization(interval_seconds=0.001)
    assert fit(project, Plain(), callback, max_steps=4, log_every_n_steps=1) == []
    assert callback.summary() == {}


def test_a_pickled_copy_samples_too_as_spawned_processes_get_one(project, memory: Memory) -> None:
    callback = pickle.loads(pickle.dumps(HostUtilization(interval_seconds=0.001)))
    assert [step for step, _ in fit(project, Patient(memory), callback, max_steps=2, log_every_n_steps=2)] == [1]
