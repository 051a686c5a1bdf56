import multiprocessing
import os
import signal
import subprocess
import sys
from functools import partial
from typing import Any

import pytest

from imagenet_opt.errors import ReadTimeout
from imagenet_opt.measure.stats.rounds import TurnFailed
from imagenet_opt.measure.storage.parallel_reads import BatchRead, checked, read_shares, sum_up, timed

FORK = multiprocessing.get_context("fork")


def share(began: float) -> list[BatchRead]:
    """Batches whose number of files is the id of the process."""
    return [BatchRead(began, began + 2, os.getpid(), 1000), BatchRead(began + 2, began + 3, os.getpid(), 3000)]


def test_each_process_reads_one_share() -> None:
    reads = read_shares([partial(share, 10.0), partial(share, 11.0)], FORK)
    assert (reads.seconds, reads.num_batches, reads.num_bytes) == (4.0, 4, 8000)
    assert reads.num_files not in (4 * os.getpid(), 0)
    assert reads.seconds_per_batch == 1.0
    assert reads.megabytes_per_second == pytest.approx(8e-3 / 4)
    one_bit_of_the_process_id = [lambda: [BatchRead(0, 1, 1, 1 << os.getpid() % 60)]] * 3
    assert read_shares(one_bit_of_the_process_id, FORK).num_bytes.bit_count() == 3


def fail() -> list[BatchRead]:
    raise ReadTimeout("no answer")


@pytest.mark.parametrize(
    ("other", "error", "words"),
    [(fail, ReadTimeout, "no answer"), (partial(os._exit, 1), TurnFailed, "killed")],
    ids=["error", "killed"],
)
def test_the_error_of_a_process_is_raised(other: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        read_shares([other, partial(share, 1.0)], FORK)


STOPPED = """
import multiprocessing, os, signal
from imagenet_opt.measure.storage.parallel_reads import read_shares

def wait_for_ever():
    os.write(1, b"!")
    while True:
        signal.pause()

try:
    read_shares([wait_for_ever] * 3, multiprocessing.get_context("fork"))
except KeyboardInterrupt:
    print("stopped")
"""


def test_ctrl_c_ends_all_processes_without_their_output() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPED], stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.read(3) == b"!!!"
        os.killpg(process.pid, signal.SIGINT)
        assert process.communicate(timeout=60) == (b"stopped\n", b"")  # the pipe is closed, so no process is left
    finally:
        process.kill()


def test_nothing_read_is_no_rate() -> None:
    with pytest.raises(TurnFailed, match="no batch"):
        sum_up([])
    with pytest.raises(TurnFailed, match=r"^Permission denied$"):
        sum_up([timed(lambda: [ValueError("Permission denied"), ValueError("bad")])] * 2)


def test_a_file_that_cannot_be_read_does_not_count() -> None:
    batch = timed(lambda: [b"12345", ValueError("bad"), b"123"])
    assert (batch.num_files, batch.num_bytes, batch.num_unread) == (2, 8, 1)
    assert batch.ended >= batch.began
    both = sum_up([batch, batch])
    assert (both.num_files, both.num_unread) == (4, 2)


def test_more_bytes_than_memory_can_give_are_no_rate() -> None:
    """1 TB in a millisecond."""
    with pytest.raises(TurnFailed, match=r"^not measured: .* MB/s from memory$"):
        checked(sum_up([BatchRead(0.0, 0.001, 10, 10**12)]))
