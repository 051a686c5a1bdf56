import pytest
import torch
from omegaconf import OmegaConf

from imagenet_opt.cli.no_halving import named_out_of_memory
from imagenet_opt.errors import OutOfMemory


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("backend='inductor' raised: OutOfMemoryError: CUDA out of memory."),
        RuntimeError("std::bad_alloc"),
        MemoryError(),
        OutOfMemory("512 images at once do not fit"),
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


def test_other_errors_stay() -> None:
    with pytest.raises(RuntimeError, match="shapes do not match"), named_out_of_memory(OmegaConf.create()):
        raise RuntimeError("shapes do not match")
