"""All files are read as asked, from memory or from storage."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imagenet_opt.config.compose import composed
from imagenet_opt.errors import ConfigError, DataError
from imagenet_opt.measure.stats.rounds import TurnFailed
from imagenet_opt.measure.storage.page_cache import evict, residency
from imagenet_opt.pack.image import PackOptions
from imagenet_opt.pack.pack import pack
from imagenet_opt.probe.testbed import Testbed
from imagenet_opt.study.kinds.read import Way, read, read_warm, run, turn
from tests.conftest import write_images
from tests.object_server import upload
from tests.study.studies import small_request

GRID: dict[str, Any] = {"num_workers": [2], "reads_in_flight": [1, 4], "batch_size": [8], "state": ["cold", "warm"]}
GRID |= {"repeats": 1}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("read"), num_classes=3, per_class=30)


@pytest.fixture
def overrides(root: Path) -> tuple[str, ...]:
    return (f"data.root={root}", f"data.cache_dir={root}/cache")


@pytest.fixture
def testbed(overrides: tuple[str, ...]) -> Testbed:
    return Testbed(composed(overrides))


@pytest.mark.slow
def test_every_setting_of_the_grid_has_a_row(root: Path, overrides: tuple[str, ...], tmp_path: Path) -> None:
    images = [str(path) for path in (root / "train").rglob("*.*") if path.is_file()]
    for path in images:
        evict(path, write_out=True)
    evictable = all(residency(path).share == 0 for path in images)  # not on memory file systems
    (table,) = run(small_request("read", tmp_path, *overrides, seconds=0.1, **GRID))
    assert [row[:4] for row in table.rows] == [(state, "2", depth, "8") for state in ("cold", "warm") for depth in "14"]
    assert all(float(row[4] or 0) > 0 for row in table.rows)
    assert [row[6] is None for row in table.rows] == [True, False] * 2, "compared with the simplest"
    assert {row[-1] for row in table.rows if row[0] == "cold"} == {"yes" if evictable else "no"}
    assert table.finding.count("Most MB/s") == 2 and "a folder, 90 images" in table.title


@pytest.mark.slow
def test_shards_are_read_in_blocks(root: Path, tmp_path: Path) -> None:
    pack(root, tmp_path / "packed", PackOptions(shard_mb=0.03))
    overrides = (f"data.root={tmp_path}/packed", f"data.cache_dir={tmp_path}/cache", "data.shuffle=block")
    grid = GRID | {"state": ["cold"], "batch_size": [24]}
    (table,) = run(small_request("read", tmp_path, *overrides, seconds=0.1, **grid))
    assert "packed (shards: " in table.title and "90 images, data.shuffle=block" in table.title
    assert len(table.rows) == 2 and all(float(row[4] or 0) > 0 for row in table.rows)


@pytest.mark.slow
def test_objects_are_read_from_the_service_or_from_the_local_cache(root: Path, bucket: str, tmp_path: Path) -> None:
    overrides = (f"data.root={upload(root, bucket)}", f"data.cache_dir={tmp_path}/cache")
    request = partial(small_request, "read", tmp_path, *overrides)
    (table,) = run(request(**GRID | {"reads_in_flight": [4]}))
    assert "one object each, 90 images" in table.title and {row[-1] for row in table.rows} == {"yes", "no"}
    with pytest.raises(ConfigError, match=r"data\.cache_gb"):
        run(small_request("read", tmp_path, *overrides, "data.cache_gb=0", **GRID | {"state": ["warm"]}))


def test_all_bytes_of_a_pass_are_read_once(testbed: Testbed) -> None:
    rows = testbed.samples.rows[:48]
    read_pass = read(testbed.samples, rows, Way("cold", 2, 4, 8))
    num_bytes = sum(Path(testbed.samples.index.path(row)).stat().st_size for row in rows.tolist())
    assert (read_pass.num_files, read_pass.num_bytes) == (48, num_bytes)


def test_warm_files_are_never_dropped(testbed: Testbed) -> None:
    warm = read_warm(testbed.samples)
    assert len(warm) == 90 // 4
    assert not any(np.isin(testbed.samples.take(64), warm).any() for _ in range(20))


def test_unreadable_files_do_not_count_or_fail_the_turn(tmp_path: Path) -> None:
    root = write_images(tmp_path / "images", num_classes=3, per_class=30)
    samples = Testbed(composed((f"data.root={root}", f"data.cache_dir={tmp_path}/cache"))).samples
    rows, way = samples.rows[:16], Way("cold", 1, 4, 8)
    for row in rows[:3].tolist():
        Path(samples.index.path(row)).unlink()
    assert read(samples, rows, way).num_files == 13
    for image in (root / "train").rglob("*.JPEG"):
        image.unlink()
    with pytest.raises(TurnFailed, match="No such file or directory"):
        read(samples, rows, way)
    with pytest.raises(DataError, match=r"data\.root"):
        read_warm(samples)


def test_a_turn_needs_a_batch_for_each_worker(testbed: Testbed) -> None:
    with pytest.raises(ConfigError, match=r"study\.batch_size"):
        turn(testbed.samples, testbed.samples.rows, Way("cold", 1, 1, 256), 0.1)
    assert turn(testbed.samples, testbed.samples.rows, Way("cold", 1, 1, 90), 60.0).num_files == 90, "all there are"
