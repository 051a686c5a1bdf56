from functools import partial
from math import log2

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from imagenet_opt.errors import OutOfMemory
from imagenet_opt.probe.memory import NeverHalved, even_parts, largest_that_fits, named_out_of_memory, whole

SIZES = [1, 2, 4, *range(8, 5000, 8)]


@settings(deadline=None)
@given(
    threshold=st.integers(0, 4096),
    start=st.integers(1, 2000),
    most=st.integers(1, 4096),
    stride=st.none() | st.integers(1, 200),
)
def test_the_largest_that_fits_is_found_in_few_trials(
    threshold: int, start: int, most: int, stride: int | None
) -> None:
    tried: list[int] = []

    def fits(size: int) -> bool:
        tried.append(size)
        return size <= threshold

    found = largest_that_fits(fits, start=start, most=most, stride=stride)
    assert found == max((size for size in SIZES if size <= min(threshold, most)), default=0)
    assert len(set(tried)) == len(tried) and max(tried) <= most
    assert len(tried) <= 4 + 2 * log2(max(most, 8))


def test_what_is_likely_to_fit_takes_few_trials() -> None:
    tried: list[int] = []
    assert largest_that_fits(lambda size: tried.append(size) or size <= 700, start=256, most=1024) == 696
    assert tried[:3] == [256, 512, 1024] and len(tried) == 9


@pytest.mark.parametrize("capacity", [390, 450, 472, 500, 1024])
def test_a_good_guess_takes_fewer_trials(capacity: int) -> None:
    from_guess: list[int] = []
    from_256: list[int] = []
    guess = min(capacity + 20, 1024)
    for tried, start, stride in ((from_guess, guess, guess // 16), (from_256, 256, None)):
        fits = partial(_fits, tried, capacity)
        assert largest_that_fits(fits, start=start, most=1024, stride=stride) == whole(capacity)
    assert from_guess[0] == whole(guess) and len(from_guess) < len(from_256)


def _fits(tried: list[int], capacity: int, size: int) -> bool:
    tried.append(size)
    return size <= capacity


@given(num=st.integers(1, 4096), most=st.integers(1, 4096))
def test_parts_are_few_and_alike(num: int, most: int) -> None:
    most = whole(most)
    size = even_parts(num, most)
    assert 1 <= size <= most
    assert -(-num // size) == -(-num // most), "no more parts than are needed"


@pytest.mark.parametrize(("num", "most", "size"), [(384, 200, 192), (384, 376, 192), (50, 48, 32), (10, 4, 4)])
def test_a_batch_that_does_not_fit_is_cut_evenly(num: int, most: int, size: int) -> None:
    assert even_parts(num, most) == size


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
        (None, "out of memory at data.batch_size=512; lower it or set model.micro_batch_size"),
        (64, "out of memory at data.batch_size=512, model.micro_batch_size=64; lower one of them"),
    ],
)
def test_whatever_ran_out_of_memory_is_one_reason(error: Exception, micro: int | None, words: str) -> None:
    config = OmegaConf.create({"data": {"batch_size": 512}, "model": {"micro_batch_size": micro}})
    with pytest.raises(OutOfMemory) as told, named_out_of_memory(config):
        raise error
    assert str(told.value) == words


def test_who_knows_what_to_set_is_not_contradicted() -> None:
    config = OmegaConf.create({"data": {"batch_size": 512}, "model": {"micro_batch_size": None}})
    with pytest.raises(OutOfMemory, match=r"set model\.micro_batch_size=256"), named_out_of_memory(config):
        NeverHalved(None).run(full, 512, take_back=lambda: None)
    with pytest.raises(OutOfMemory, match="not even one image"), named_out_of_memory(config):
        NeverHalved(1).run(full, 512, take_back=lambda: None)


def full(part: slice) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def test_other_errors_stay() -> None:
    with pytest.raises(RuntimeError, match="shapes do not match"), named_out_of_memory(OmegaConf.create()):
        raise RuntimeError("shapes do not match")
