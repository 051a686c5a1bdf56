"""Shared memory is reused, but not while a batch in it is needed."""

import torch
from torch.utils.data import DataLoader, Dataset

from imagenet_opt.data.shared_buffers import Lease, SharedBufferPool


class Stamps(Dataset):
    """Item i is a buffer full of i, in a slot."""

    def __init__(self, buffers: SharedBufferPool) -> None:
        self.buffers = buffers

    def __len__(self) -> int:
        return 12

    def __getitem__(self, i: int) -> tuple[torch.Tensor, Lease | None]:
        self.buffers.new_batch(0, i + 1, 0)
        buffer, lease = self.buffers.acquire(1000)
        buffer.fill_(i)
        self.buffers.count(1)
        return buffer, lease


def loaded(buffers: SharedBufferPool) -> "DataLoader[tuple[torch.Tensor, Lease | None]]":
    return DataLoader(Stamps(buffers), batch_size=None, num_workers=1, prefetch_factor=2)


def test_released_buffers_are_reused() -> None:
    buffers = SharedBufferPool(num_workers=1, depth=4)
    used = set()
    for i, (buffer, lease) in enumerate(loaded(buffers)):
        assert (buffer == i).all()
        assert lease is not None
        used.add(lease.slot)
        buffers.release(lease)
    assert len(used) <= 3  # two ahead, one in use
    assert buffers.holding.tolist() == [[0, 0, 0, 0]]
    assert buffers.made.tolist() == [12]


def test_buffers_in_use_are_not_overwritten() -> None:
    buffers = SharedBufferPool(num_workers=1, depth=3)
    kept = list(loaded(buffers))
    assert [int(buffer[0]) for buffer, _ in kept] == list(range(12))
    assert [lease is None for _, lease in kept] == [False] * 3 + [True] * 9


def test_a_late_release_does_not_free_a_later_batch() -> None:
    buffers = SharedBufferPool(num_workers=1, depth=2)
    buffers.holding[0, 1] = 7
    buffers.release(Lease(0, 1, 6))
    assert int(buffers.holding[0, 1]) == 7
    buffers.release(Lease(0, 1, 7))
    buffers.release(None)
    assert int(buffers.holding[0, 1]) == 0
