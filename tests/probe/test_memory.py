from math import log2

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from imagenet_opt.errors import OutOfMemory
from imagenet_opt.probe.memory import largest_that_fits, named_out_of_memory

SIZES = [1, 2, 4, *range(8, 5000, 8)]


class Capacity:
    """A device for `most` images; `tried` lists the sizes that were tried."""

    def __init__(self, most: int) -> None:
        self.most, self.tried = most, list[int]()

    def fits(self, size: int) -> bool:
        self.tried.append(size)
        return size <= self.most


@settings(deadline=None)
@given(capacity=st.integers(0, 4096), start=st.integers(1, 2000), most=st.integers(1, 4096))
def test_the_largest_size_that_fits_is_found_in_few_trials(capacity: int, start: int, most: int) -> None:
    device = Capacity(capacity)
    largest = largest_that_fits(device.fits, start=start, most=most)
    assert largest == max((size for size in SIZES if size <= min(capacity, most)), default=0)
    assert len(set(device.tried)) == len(device.tried) and max(device.tried) <= most
    assert len(device.tried) <= 4 + 2 * log2(max(most, 8))


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("backend='inductor' raised: OutOfMemoryError: CUDA out of memory."),
        RuntimeError("std::bad_alloc"),
        MemoryError(),
    ],
)
def test_each_kind_of_out_of_memory_names_the_keys(error: Exception) -> None:
    config = OmegaConf.create({"data": {"batch_size": 512}, "model": {"micro_batch_size": 64}})
    with pytest.raises(OutOfMemory, match=r"=512, model\.micro_batch_size=64"), named_out_of_memory(config):
        raise error
