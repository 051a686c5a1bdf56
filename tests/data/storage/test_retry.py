"""Temporary errors are retried, other errors are not."""

import errno
import os
import time
from collections.abc import Callable

import pytest

from imagenet_opt.data.storage.retry import retry_transient


def failing(*codes: int) -> tuple[list[int], Callable[[], bytes]]:
    """The codes that are left, and a read that fails with one code per call, and then returns b"bytes"."""
    left = list(codes)

    def read() -> bytes:
        if left:
            code = left.pop(0)
            raise OSError(code, os.strerror(code))
        return b"bytes"

    return left, read


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.EBUSY, errno.EMFILE])
def test_temporary_errors_are_retried_with_a_warning(code: int, caplog: pytest.LogCaptureFixture) -> None:
    left, read = failing(code)
    assert retry_transient(read, "/fsx/x.JPEG", 60) == b"bytes"
    assert not left
    assert f"/fsx/x.JPEG: {os.strerror(code)}; retrying for up to" in caplog.text


@pytest.mark.parametrize("code", [errno.ENOENT, errno.EACCES])
def test_permanent_errors_are_raised_at_once(code: int) -> None:
    left, read = failing(code, errno.EIO)
    with pytest.raises(OSError, match=os.strerror(code)):
        retry_transient(read, "x", 60)
    assert left == [errno.EIO]


def test_after_the_patience_the_last_error_is_raised() -> None:
    with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
        retry_transient(failing(errno.EIO, *[errno.ESTALE] * 1000)[1], "x", 0.2)


def test_an_error_after_a_long_read_is_retried() -> None:
    """A soft NFS mount gives up only after minutes: the patience begins with the first error, not with the read."""
    left, read = failing(errno.ETIMEDOUT)

    def slowly() -> bytes:
        time.sleep(0.3 if left else 0)
        return read()

    assert retry_transient(slowly, "x", 0.2) == b"bytes"
