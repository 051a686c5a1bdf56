"""Workers and prefetched batches are fitted to CPUs and memory, with one log line."""

import pytest

from imagenet_opt.data.budget import LoaderBudget, fit_loader

GIB, MIB = 2**30, 2**20


def fit(workers: int | str, prefetch: int, *, n: int = 1, **limits: int) -> LoaderBudget:
    """On a machine of 64 CPUs and 124 GiB, with batches of 60 MiB and `n` training processes."""
    machine = {"batch_bytes": 60 * MIB, "cpus": 64, "memory": 124 * GIB} | limits
    machine = {"shared_memory": machine["memory"]} | machine
    return fit_loader(num_workers=workers, prefetch_factor=prefetch, processes=n, **machine)


@pytest.mark.parametrize("batch", [60 * MIB, 384 * 3 * 224 * 224 * 4])
@pytest.mark.parametrize(("memory", "processes"), [(16 * GIB, 1), (62 * GIB, 2)])
def test_both_loaders_together_fill_no_more_than_half_of_the_memory(batch: int, memory: int, processes: int) -> None:
    """Training's and validation's, of each process. A worker has three batches more than it prefetches, 128 MiB of
    files read ahead, and a decoded image."""
    budget = fit(32, 8, batch_bytes=batch, memory=memory, n=processes)
    each = budget.num_workers * ((budget.prefetch_factor + 3) * batch + 128 * MIB + 76 * MIB)
    assert 0 < 2 * processes * each <= memory / 2 == budget.allowed
    assert budget.is_cut and budget.needed > budget.allowed
    assert "data.num_workers=32 x data.prefetch_factor=8" in budget.message


def test_workers_follow_the_cpus_of_each_process() -> None:
    assert fit(32, 2, cpus=4).num_workers == 4
    assert fit(32, 2, cpus=4, n=2).num_workers == 2
    assert fit(32, 2, cpus=4, n=2, sharing_cpus=1).num_workers == 4
    assert fit("auto", 2, cpus=6).num_workers == 6
    assert fit(0, 2).num_workers == 0
    fitting = fit(32, 8)
    assert (fitting.num_workers, fitting.prefetch_factor, fitting.is_cut, fitting.message) == (32, 8, False, None)


def test_a_batch_larger_than_the_room_still_gets_one_worker() -> None:
    budget = fit(8, 4, batch_bytes=10 * GIB, memory=4 * GIB)
    assert (budget.num_workers, budget.prefetch_factor) == (1, 1)
    assert "10240 MiB each" in str(budget.message)
