from math import log2

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from imagenet_opt.errors import OutOfMemory
from imagenet_opt.probe.memory import NeverHalved, allowed_size, even_parts, largest_that_fits, named_out_of_memory

SIZES = [1, 2, 4, *range(8, 5000, 8)]


class Capacity:
    """A device for `most` images; `tried` lists the sizes that were tried."""

    def __init__(self, most: int) -> None:
        self.most, self.tried = most, list[int]()

    def fits(self, size: int) -> bool:
        self.tried.append(size)
        return size <= self.most


@settings(deadline=None)
@given(
    capacity=st.integers(0, 4096),
    start=st.integers(1, 2000),
    most=st.integers(1, 4096),
)
def test_the_largest_size_that_fits_is_found_in_few_trials(capacity: int, start: int, most: int) -> None:
    device = Capacity(capacity)
    largest = largest_that_fits(device.fits, start=start, most=most)
    assert largest == max((size for size in SIZES if size <= min(capacity, most)), default=0)
    assert len(set(device.tried)) == len(device.tried) and max(device.tried) <= most
    assert len(device.tried) <= 4 + 2 * log2(max(most, 8))


def test_the_search_doubles_then_bisects() -> None:
    device = Capacity(700)
    assert largest_that_fits(device.fits, start=256, most=1024) == 696
    assert device.tried[:3] == [256, 512, 1024] and len(device.tried) == 9


@given(num=st.integers(1, 4096), most=st.integers(1, 4096))
def test_parts_are_few(num: int, most: int) -> None:
    most = allowed_size(most)
    size = even_parts(num, most)
    assert 1 <= size <= most
    assert -(-num // size) == -(-num // most), "no more parts than are needed"


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("backend='inductor' raised: OutOfMemoryError: CUDA out of memory."),
        RuntimeError("std::bad_alloc"),
        MemoryError(),
    ],
)
@pytest.mark.parametrize(
    ("micro", "words"),
    [
        (None, "out of memory at data.batch_size=512; lower data.batch_size or set model.micro_batch_size"),
        (64, "out of memory at data.batch_size=512, model.micro_batch_size=64; lower one of these values"),
    ],
)
def test_each_kind_of_out_of_memory_gets_one_message(error: Exception, micro: int | None, words: str) -> None:
    config = OmegaConf.create({"data": {"batch_size": 512}, "model": {"micro_batch_size": micro}})
    with pytest.raises(OutOfMemory) as raised, named_out_of_memory(config):
        raise error
    assert str(raised.value) == words


@pytest.mark.parametrize(("size", "words"), [(None, r"set model\.micro_batch_size=256"), (1, "not even one image")])
def test_a_more_precise_message_stays(size: int | None, words: str) -> None:
    def work(part: slice) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    config = OmegaConf.create({"data": {"batch_size": 512}, "model": {"micro_batch_size": None}})
    with pytest.raises(OutOfMemory, match=words), named_out_of_memory(config):
        NeverHalved(size).run(work, 512, take_back=lambda: None)


def test_other_errors_stay() -> None:
    with pytest.raises(RuntimeError, match="shapes do not match"), named_out_of_memory(OmegaConf.create()):
        raise RuntimeError("shapes do not match")
