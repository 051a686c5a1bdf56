import os
import signal
import subprocess
import sys
from functools import partial

import pytest

from imagenet_opt.errors import ReadTimeout
from imagenet_opt.measure.stats.rounds import TurnFailed
from imagenet_opt.measure.storage.parallel_reads import BatchRead, checked, read_shares, sum_up, timed


def share(began: float) -> list[BatchRead]:
    """Tells the process that read it as its number of files."""
    return [BatchRead(began, began + 2, os.getpid(), 1000), BatchRead(began + 2, began + 3, os.getpid(), 3000)]


def test_shares_are_read_by_processes_of_their_own() -> None:
    found = read_shares([partial(share, 10.0), partial(share, 11.0)])
    assert (found.seconds, found.num_batches, found.num_bytes) == (4.0, 4, 8000)
    assert found.num_files not in (4 * os.getpid(), 0)
    assert found.seconds_per_batch == 1.0
    assert found.megabytes_per_second == pytest.approx(8e-3 / 4)


def test_each_process_takes_one_share() -> None:
    def pid() -> list[BatchRead]:
        return [BatchRead(0, 1, 1, 1 << os.getpid() % 60)]

    assert read_shares([pid] * 3).num_bytes.bit_count() == 3


def test_what_a_share_raises_is_raised() -> None:
    def fail() -> list[BatchRead]:
        raise ReadTimeout("no answer")

    with pytest.raises(ReadTimeout, match="no answer"):
        read_shares([fail, partial(share, 1.0)])


def test_a_killed_process_fails_the_turn() -> None:
    def die() -> list[BatchRead]:
        os._exit(1)

    with pytest.raises(TurnFailed, match="killed"):
        read_shares([die])


STOPPED = """
import os, signal
from imagenet_opt.measure.storage.parallel_reads import read_shares

def wait_for_ever():
    os.write(1, b"!")
    while True:
        signal.pause()

try:
    read_shares([wait_for_ever] * 3)
except KeyboardInterrupt:
    print("stopped")
"""


def test_ctrl_c_ends_all_processes_without_a_word_of_theirs() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPED], stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.read(3) == b"!!!"
        os.killpg(process.pid, signal.SIGINT)
        assert process.communicate(timeout=60) == (b"stopped\n", b"")  # also: none is left that could write more
    finally:
        process.kill()


def test_nothing_read_is_no_rate() -> None:
    with pytest.raises(TurnFailed, match="no batch"):
        sum_up([])
    with pytest.raises(TurnFailed, match=r"^Permission denied$"):
        sum_up([timed(lambda: [ValueError("Permission denied"), ValueError("bad")])] * 2)


def test_a_file_that_cannot_be_read_does_not_count() -> None:
    found = timed(lambda: [b"12345", ValueError("bad"), b"123"])
    assert (found.num_files, found.num_bytes, found.num_unread) == (2, 8, 1)
    whole = sum_up([found, found])
    assert (whole.num_files, whole.num_unread) == (4, 2)
    assert found.ended >= found.began


def test_more_bytes_than_memory_can_give_are_no_rate() -> None:
    """1 TB in a millisecond."""
    with pytest.raises(TurnFailed, match=r"^not measured: .* MB/s from memory$"):
        checked(sum_up([BatchRead(0.0, 0.001, 10, 10**12)]))
