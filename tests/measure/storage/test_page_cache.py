"""Page cache: residency, eviction, and the evidence that files are cold."""

import mmap
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from imagenet_opt.measure.storage.page_cache import Eviction, Extent, Residency, evict, evicted, residency, residency_of

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


def test_files_just_written_can_be_evicted_and_files_in_use_are_not_called_cold(file: str) -> None:
    Path(file).write_bytes(b"new" * PAGE)
    eviction = evicted([Extent(file)])
    assert eviction.verified, eviction.evidence
    with open(file, "rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert len(bytes(mapped)) == 3 * PAGE
        eviction = evicted([Extent(file)])
    assert not eviction.verified
    assert "100.0% of 1 files" in eviction.evidence


def test_files_that_the_user_may_only_read_are_not_called_cold(file: str) -> None:
    """As another user, on files of root: the kernel tells nothing."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to run as another user")
    private = (part for part in (Path(file), *Path(file).parents) if Path(tempfile.gettempdir()) in part.parents)
    for part in private:  # folders of pytest
        part.chmod(0o755)
    program = f"""
import os, sys
sys.path[:] = {sys.path!r}
from imagenet_opt.measure.storage import page_cache
os.setgid(65534), os.setuid(65534)
print(page_cache.evicted([page_cache.Extent({file!r})]).evidence)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("unverified: ") and "owns" in done.stdout and residency(file).share == 0, (
        "evicted all the same"
    )


def test_absent_files_are_left_out_of_a_mean(tmp_path: Path, file: str) -> None:
    read(file, 0, 10 * PAGE)
    absent = Extent(str(tmp_path / "absent"))
    extents = [absent, *(Extent(file, i * PAGE, PAGE) for i in range(NUM_PAGES))]
    assert residency_of(extents) == Residency(10 / NUM_PAGES, "mincore")
    assert evicted([absent, Extent(file)]).left.share == 0
    assert evicted([absent]).left.share is residency_of([]).share is None
