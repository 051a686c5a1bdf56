"""Page cache: residency, eviction, and the evidence that files are cold."""

import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from imagenet_opt.measure.storage.page_cache import (
    Eviction,
    Extent,
    Residency,
    evict,
    evicted,
    eviction_probed,
    probed,
    residency,
    sampled_residency,
)
from tests.conftest import let_others_read

PAGE = mmap.PAGESIZE
NUM_PAGES = 40


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = str(tmp_path / "file")
    Path(path).write_bytes(os.urandom(NUM_PAGES * PAGE - 100))
    evict(path, write_out=True)
    if residency(path).share != 0:
        pytest.skip("nothing can be evicted here: a memory file system, or a kernel that does not report pages")
    return path


def read(path: str, start: int, size: int) -> None:
    """Read without read-ahead, so that no other pages come into memory."""
    opened = os.open(path, os.O_RDONLY)
    os.posix_fadvise(opened, 0, 0, os.POSIX_FADV_RANDOM)
    assert len(os.pread(opened, size, start)) == size
    os.close(opened)


def run_as_nobody(program: str, *files: Path) -> str:
    """The output of a program of another user, who may read these files; `page_cache` is imported. Needs root."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to run as another user")
    let_others_read(*files)
    setup = f"""
import mmap, os, sys
sys.path[:] = {sys.path!r}
from imagenet_opt.measure.storage import page_cache
def become_nobody():
    os.setgid(65534), os.setuid(65534)
"""
    done = subprocess.run([sys.executable, "-c", setup + program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_residency_is_the_share_of_the_read_pages(file: str) -> None:
    assert residency(file).share == 0
    read(file, 10 * PAGE, 10 * PAGE)
    assert residency(file) == (10 / NUM_PAGES, "mincore")
    assert residency(file, 10 * PAGE, 10 * PAGE).share == 1
    assert residency(file, 15 * PAGE + 1, 10 * PAGE).share == 5 / 11  # 11 pages hold them
    assert residency(file, 30 * PAGE).share == 0
    evict(file, 10 * PAGE + 100, 9 * PAGE)
    assert residency(file).share == 0, "pages with other bytes too are evicted"
    read(file, 0, NUM_PAGES * PAGE - 100)
    assert residency(file).share == 1
    assert evicted([Extent(file), Extent(file)]) == Eviction(Residency(0, "mincore"), 1)
    assert residency(file, 2 * NUM_PAGES * PAGE).share == 0, "no bytes are not in memory"


def test_neighbours_in_a_shard_leave_memory_together(tmp_path: Path, file: str) -> None:
    """Large pages hold several samples that were read together, with tar headers between the samples."""
    shard, num, header = str(tmp_path / "shard"), 40, 512
    size = 25 * PAGE + 100
    Path(shard).write_bytes(bytes(num * (size + header)))
    evict(shard, write_out=True)
    samples = [Extent(shard, i * (size + header) + header, size) for i in range(num)]
    for _, start, _ in samples:
        with open(shard, "rb") as opened:
            opened.seek(start)
            assert opened.read(size)
    eviction = evicted(samples[: num // 2])
    assert eviction.verified and eviction.num_files == num // 2
    assert residency(*samples[-1]).share == 1


def test_files_just_written_can_be_evicted(file: str) -> None:
    Path(file).write_bytes(b"new" * PAGE)
    eviction = evicted([Extent(file)])
    assert eviction.verified, eviction.evidence


def test_files_in_use_are_not_called_cold(file: str) -> None:
    with open(file, "rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert len(bytes(mapped)) == NUM_PAGES * PAGE - 100
        eviction = evicted([Extent(file)])
    assert not eviction.verified
    assert "100.0% of 1 files" in eviction.evidence


def test_probes_verify_the_eviction_of_files_that_the_user_may_only_read(file: str) -> None:
    """As another user, on files of root: evicted files are cold, mapped files are not."""
    if probed([Extent(file)]).share is None:
        pytest.skip("this file system has no RWF_NOWAIT")
    program = f"""
become_nobody()
extents = [page_cache.Extent({file!r})]
assert page_cache.evicted(extents).unknown
assert any(page_cache.eviction_probed(extents).verified for _ in range(3))  # the kernel may hold a page for a moment
with open({file!r}, "rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
    len(bytes(mapped))
    print(page_cache.eviction_probed(extents).evidence)
"""
    assert run_as_nobody(program, Path(file)).startswith(
        "unverified: 100.0% of 1 files is still in memory (preadv2 with RWF_NOWAIT, on a sample of similar files"
    )


def test_probes_detect_pages_in_memory(file: str, tmp_path: Path) -> None:
    cold = probed([Extent(file)])
    if cold.share is None:
        pytest.skip("this file system has no RWF_NOWAIT")

    def seen_cold() -> bool:
        evict(file, write_out=True)
        return probed([Extent(file)]).share == 0

    assert any(seen_cold() for _ in range(20)), "the read-ahead of a fast disk may end before the probe looks"
    other = tmp_path / "other"
    other.write_bytes(b"x" * PAGE)  # what was just written is in memory
    extents = [Extent(str(other)), Extent(str(tmp_path / "absent"))]
    assert any(probed(extents).share == 1 for _ in range(5)), "a page that is locked just now counts as absent"
    assert probed([]).share is None


def test_without_the_flag_nothing_is_known(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "RWF_NOWAIT", 1 << 30)  # as a file system that knows no such flag
    eviction = eviction_probed([Extent(file)])
    assert not eviction.verified and eviction.unknown
    assert "preadv2" in eviction.evidence


def test_a_sample_estimates_the_data_set(file: str) -> None:
    read(file, 0, 10 * PAGE)
    extents = [Extent(file, i * PAGE, PAGE) for i in range(NUM_PAGES)]
    assert sampled_residency(extents.__getitem__, NUM_PAGES).share == 10 / NUM_PAGES
    requested: list[int] = []
    sampled_residency(lambda i: requested.append(i) or extents[i], NUM_PAGES, num=7)
    assert len(set(requested)) == 7


def test_absent_files_are_left_out(tmp_path: Path, file: str) -> None:
    absent = Extent(str(tmp_path / "absent"))
    assert evicted([absent, Extent(file)]).left.share == 0
    assert evicted([absent]).left.share is None
    assert sampled_residency(lambda i: absent, 3).share is None
