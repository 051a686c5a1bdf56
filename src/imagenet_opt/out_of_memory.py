"""Where a device's memory runs out: which errors say so, and what the user is told."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from imagenet_opt.errors import OutOfMemory, first_line

_RAN_OUT = re.compile(
    r"out of memory|can't allocate memory|(ALLOC|ALLOCATION)_FAILED"
    r"|unable to find (an engine|a valid cuDNN algorithm)",
    re.IGNORECASE,
)
"""What torch's own errors say, and those of cuBLAS and cuDNN, which allocate beside torch. cuDNN finds no engine where
no engine finds room for its workspace."""


def ran_out(error: BaseException | None) -> bool:
    """Whether the error, or one that led to it, says that memory ran out, in torch or in a library below it.

    A CUDA graph whose capture runs out of memory ends with an error of its own.
    """
    if error is None:
        return False
    if isinstance(error, torch.OutOfMemoryError) or (isinstance(error, RuntimeError) and _RAN_OUT.search(str(error))):
        return True
    return ran_out(error.__cause__ or (None if error.__suppress_context__ else error.__context__))


@contextmanager
def explained(where: str, remedy: str) -> Iterator[None]:
    """Turns the device's out of memory into OutOfMemory, where the work cannot be done in smaller parts."""
    try:
        yield
    except RuntimeError as error:
        if not ran_out(error):
            raise
        raise OutOfMemory(f"the device's memory ran out {where} ({first_line(error)}); {remedy}") from error
