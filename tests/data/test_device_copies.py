"""How a batch travels to the device; tests/gpu/test_prefetcher.py has the copies of a GPU."""

from collections import Counter

import torch

from imagenet_opt.data.batch import LoadStats, RaggedBatch
from imagenet_opt.data.keys import BatchKey
from imagenet_opt.data.shared_buffers import shared_bytes

FACTS = (BatchKey(0, 0, 4), LoadStats(0, 0, 0, 0, 1, 0, (), Counter()))


def test_small_tensors_travel_as_one_block() -> None:
    """Each has its dtype, shape and values, and a place where tensors of the dtype may begin."""
    num = 5
    sizes = torch.arange(2 * num, dtype=torch.int32).view(2, num)
    small = (torch.arange(num), torch.arange(num) - 5, torch.arange(num) % 2 == 0)
    ragged = {"offsets": torch.arange(num) * 7, "flips": small[2].clone(), "windows": torch.rand(num, 4)}
    batch = RaggedBatch(*small, *FACTS, None, shared_bytes(64).fill_(3), *sizes, **ragged)
    shared = batch.share_memory()
    sent = shared.to("cpu", non_blocking=True)
    blocks = {getattr(sent, name).untyped_storage().data_ptr() for name in batch.tensors_by_name()}
    assert len(blocks) == 2  # pixels, and all others
    for name, tensor in batch.tensors_by_name().items():
        actual = getattr(sent, name)
        assert torch.equal(actual, tensor)
        assert (actual.dtype, actual.shape) == (tensor.dtype, tensor.shape)
        assert actual.data_ptr() % 16 == 0
    apart = batch.clone()  # heights and widths share memory here
    assert torch.equal(apart.widths, batch.widths)
    assert apart.widths.data_ptr() != batch.widths.data_ptr()
