"""Slow storage made with FUSE: same bytes, copies, and a page cache that keeps and loses them."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from imagenet_opt.measure.storage.first_touch import touch_twice
from imagenet_opt.measure.storage.page_cache import Eviction, Extent, evicted, residency
from imagenet_opt.measure.storage.read_depths import Indices
from suites.doctor.slow_mount import slow_mount
from suites.faults.flaky_folder import tell
from suites.faults.not_tried import NotTried

HOUR = 3600.0


@pytest.fixture(scope="module")
def mounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """Source and mount, four copies of each of three images: the daemon takes seconds to start."""
    place = tmp_path_factory.mktemp("slow")
    folder = place / "source" / "class_1"
    folder.mkdir(parents=True)
    for i in range(3):
        (folder / f"image_{i}.JPEG").write_bytes(os.urandom(100_000 * (i + 1)))
    try:
        with slow_mount(place / "source", place / "mount", copies=4):
            yield place / "source", place / "mount"
    except NotTried as reason:
        pytest.skip(str(reason))


@pytest.fixture
def control(mounted: tuple[Path, Path]) -> Iterator[Path]:
    """The file of settings, which is reset after the test."""
    file = mounted[1].with_suffix(".json")
    yield file
    tell(file)


@pytest.fixture
def folder(mounted: tuple[Path, Path]) -> Path:
    return mounted[1] / "class_1"


def test_copies_are_the_source(folder: Path, mounted: tuple[Path, Path]) -> None:
    assert sorted(os.listdir(folder)) == [f"image_{i}_{copy:02}.JPEG" for i in range(3) for copy in range(4)]
    for path in folder.glob("*_00.JPEG"):
        source = mounted[0] / "class_1" / f"{path.stem[:-3]}.JPEG"
        assert path.read_bytes() == source.read_bytes()


def test_files_once_read_come_from_memory_until_evicted(control: Path, folder: Path) -> None:
    path = folder / "image_2_03.JPEG"
    content = path.read_bytes()
    assert residency(str(path)).share == 1
    tell(control, latency=HOUR)
    assert path.read_bytes() == content  # a request would wait for an hour
    found = evicted([Extent(str(path))])
    assert found.verified, found.evidence
    assert residency(str(path)).share == 0
    tell(control)
    assert path.read_bytes() == content


def test_first_touch_is_found(control: Path, folder: Path) -> None:
    paths = [str(folder / f"image_{i}_{copy:02}.JPEG") for i in range(3) for copy in (1, 2)]

    def read(indices: Indices) -> list[bytes]:
        return [Path(paths[i]).read_bytes() for i in indices.tolist()]

    def evict(indices: Indices) -> Eviction:
        return evicted(Extent(paths[i]) for i in indices.tolist())

    groups = list(np.arange(len(paths))[:, None])
    tell(control, first_touch=0.3)
    found = touch_twice(read, evict, groups)
    assert found.lazy, found.evidence
    assert min(found.first_seconds) >= 0.3
    assert not touch_twice(read, evict, groups).lazy
