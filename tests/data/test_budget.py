"""What was asked for is fitted to CPUs and memory, and said in one line."""

from pathlib import Path

import psutil
import pytest

from imagenet_opt import machine
from imagenet_opt.data.budget import fit_loader
from imagenet_opt.machine import GIB


def fit(
    workers: int | None, prefetch: int, *, batch: int = 60 * 2**20, cpus: int = 64, memory: int = 62 * GIB, n: int = 1
):
    return fit_loader(
        num_workers=workers, prefetch_factor=prefetch, batch_bytes=batch, cpus=cpus, memory=memory, processes=n
    )


def test_what_fits_is_left_alone_and_nothing_is_said() -> None:
    assert fit(32, 8) == type(fit(32, 8))(32, 8, None)


def test_float_batches_of_384_do_not_fill_the_memory() -> None:
    budget = fit(32, 8, batch=384 * 3 * 224 * 224 * 4)
    assert budget.num_workers * budget.prefetch_factor * 384 * 3 * 224 * 224 * 4 <= 31 * GIB
    assert "data.num_workers=32" in budget.message
    assert "data.prefetch_factor=8" in budget.message


def test_workers_follow_the_cpus_of_each_process() -> None:
    assert fit(32, 2, cpus=4).num_workers == 4
    assert fit(32, 2, cpus=4, n=2).num_workers == 2
    assert fit(None, 2, cpus=6).num_workers == 6
    assert fit(0, 2).num_workers == 0


def test_page_cache_is_room_under_either_kind_of_cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    assert machine.available_memory() == pytest.approx(psutil.virtual_memory().available, rel=0.2)
    names = ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat")
    (tmp_path / "memory").mkdir()
    for name, text in zip(names, ("1000\n", "900\n", "cache 1\ntotal_inactive_file 300\n"), strict=True):
        (tmp_path / name).write_text(text)
    assert machine.available_memory() == 400
    for name, text in (("max", "2000\n"), ("current", "1500\n"), ("stat", "file 1\ninactive_file 250\n")):
        (tmp_path / f"memory.{name}").write_text(text)
    assert machine.available_memory() == 750


def test_a_batch_larger_than_the_room_still_gets_one_worker() -> None:
    budget = fit(8, 4, batch=10 * GIB, memory=4 * GIB)
    assert (budget.num_workers, budget.prefetch_factor) == (1, 1)
