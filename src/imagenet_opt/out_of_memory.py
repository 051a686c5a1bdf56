"""Recognises errors about full device memory, and turns them into OutOfMemory with a remedy."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from imagenet_opt.errors import OutOfMemory, first_line

_RAN_OUT = re.compile(
    r"out of memory|can't allocate memory|(ALLOC|ALLOCATION)_FAILED"
    r"|unable to find (an engine|a valid cuDNN algorithm)"
    r"|bad_alloc|Thread creation failed|could not create a primitive",
    re.IGNORECASE,
)
"""Texts of the errors of torch, cuBLAS, cuDNN, C++, OpenMP (for the stack of a thread) and oneDNN. "Unable to find an
engine" means that no engine of cuDNN has room for its workspace."""


def ran_out(error: BaseException | None) -> bool:
    """Whether the error, or an error that led to it, reports full memory in torch or in a library below torch.

    A CUDA graph whose capture runs out of memory raises another error, with the out-of-memory error as its context.
    """
    if error is None:
        return False
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if isinstance(error, RuntimeError) and _RAN_OUT.search(str(error)):
        return True
    return ran_out(error.__cause__ or (None if error.__suppress_context__ else error.__context__))


@contextmanager
def explained(where: str, remedy: str) -> Iterator[None]:
    """Turn a device's out-of-memory error into OutOfMemory, for work that cannot be split into smaller parts."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not ran_out(error):
            raise
        raise OutOfMemory(f"the device's memory ran out {where} ({first_line(error)}); {remedy}") from error
