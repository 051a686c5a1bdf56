import pytest
import torch
from omegaconf import OmegaConf

from imagenet_opt.cli.no_halving import AskedOnly, named_out_of_memory
from imagenet_opt.errors import OutOfMemory


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
        AskedOnly(None).run(full, 512, take_back=lambda: None)
    with pytest.raises(OutOfMemory, match="not even one image"), named_out_of_memory(config):
        AskedOnly(1).run(full, 512, take_back=lambda: None)


def full(part: slice) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def test_other_errors_stay() -> None:
    with pytest.raises(RuntimeError, match="shapes do not match"), named_out_of_memory(OmegaConf.create()):
        raise RuntimeError("shapes do not match")
