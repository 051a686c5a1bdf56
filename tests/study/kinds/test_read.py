from functools import partial
from pathlib import Path

import numpy as np
import pytest

from imagenet_opt.config.compose import composed
from imagenet_opt.errors import ConfigError, DataError
from imagenet_opt.measure.stats.rounds import TurnFailed
from imagenet_opt.measure.storage.page_cache import evict, residency
from imagenet_opt.measure.storage.parallel_reads import ReadPass
from imagenet_opt.pack.pack import pack
from imagenet_opt.pack.plan import PackOptions
from imagenet_opt.probe.samples import in_blocks
from imagenet_opt.probe.testbed import Testbed
from imagenet_opt.study.kinds import read as study_read
from imagenet_opt.study.kinds.read import Files, Setting, read, read_table, run, turn, used_up
from tests.conftest import write_images
from tests.object_server import upload
from tests.study.studies import small_request

GRID = {"num_workers": [1, 2], "reads_in_flight": [1, 4], "batch_size": [8]}


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
def test_every_setting_of_the_grid_has_a_row(
    root: Path,
    overrides: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    images = [str(path) for path in (root / "train").rglob("*.*") if path.is_file()]
    for path in images:
        evict(path, write_out=True)
    evictable = all(residency(path).share == 0 for path in images)  # not on memory file systems
    request = small_request("read", tmp_path, *overrides, seconds=0.02, state=["cold", "warm"], **GRID)
    (table,) = run(request)
    assert capsys.readouterr().err.splitlines()[:2] == [
        "measuring: reading 22 files into memory",
        "measuring: round 1 of 2: cold, workers 1, in flight 1, batch 8",
    ]
    monkeypatch.setattr(study_read, "read", pytest.fail)
    assert run(request) == [table]
    assert [row[:4] for row in table.rows] == [
        (state, workers, depth, 8.0) for state in ("cold", "warm") for workers in ("1", "2") for depth in (1.0, 4.0)
    ]
    assert all(float(row[4] or 0) > 0 for row in table.rows)
    assert {row[9] for row in table.rows if row[0] == "warm"} == {None}
    assert {row[9] for row in table.rows if row[0] == "cold"} == {"verified" if evictable else "unverified"}
    assert "a folder, 90 images" in table.title


@pytest.mark.slow
def test_shards_are_read_in_blocks(root: Path, tmp_path: Path) -> None:
    pack(root, tmp_path / "packed", PackOptions(shard_mb=0.03))
    overrides = (f"data.root={tmp_path}/packed", f"data.cache_dir={tmp_path}/cache", "data.shuffle=block")
    grid = GRID | {"num_workers": [2], "batch_size": [24]}
    (table,) = run(small_request("read", tmp_path, *overrides, seconds=0.02, state=["cold", "warm"], **grid))
    assert "packed (shards: " in table.title and "90 images, data.shuffle=block" in table.title
    assert len(table.rows) == 4 and all(float(row[4] or 0) > 0 for row in table.rows)


@pytest.mark.slow
def test_objects_are_read_from_the_service_or_from_the_local_cache(root: Path, bucket: str, tmp_path: Path) -> None:
    overrides = (f"data.root={upload(root, bucket)}", f"data.cache_dir={tmp_path}/cache")
    request = partial(small_request, "read", tmp_path, *overrides)
    (table,) = run(request(seconds=0.05, state=["cold", "warm"], **GRID | {"reads_in_flight": [4]}))
    assert "one object each, 90 images" in table.title
    rates = {row[:2]: float(row[4] or 0) for row in table.rows}
    assert rates["warm", "2"] > 2 * rates["cold", "2"] > 0, rates
    assert {row[9] for row in table.rows} == {"verified", None}
    with pytest.raises(ConfigError, match=r"local cache, which keeps none here; set data.cache_gb=null, or"):
        run(small_request("read", tmp_path, *overrides, "data.cache_gb=0", state=["warm"], **GRID))


@pytest.mark.parametrize("workers", [1, 2])
def test_all_bytes_of_a_pass_are_read_once(testbed: Testbed, workers: int) -> None:
    rows = testbed.samples.rows[:48].tolist()
    read_pass = read(Files(testbed.samples, []), Setting("cold", workers, 4, 8), 48 // (8 * workers))
    num_bytes = sum(Path(testbed.samples.index.path(row)).stat().st_size for row in rows)
    assert (read_pass.num_batches, read_pass.num_files, read_pass.num_bytes) == (6, 48, num_bytes)


def test_warm_files_are_never_dropped(testbed: Testbed) -> None:
    setting = Setting("warm", 1, 1, 8)
    files = Files(testbed.samples, [setting])
    warm = set(files.rows(setting, 200)[0].tolist())
    assert len(warm) == 90 // 4, "all warm files take turns"
    for _ in range(20):
        assert warm.isdisjoint(files.rows(Setting("cold", 1, 1, 8), 64)[0].tolist())


def test_unreadable_files_are_counted_or_fail_the_turn(tmp_path: Path) -> None:
    root = write_images(tmp_path / "images", num_classes=3, per_class=30)
    testbed = Testbed(composed((f"data.root={root}", f"data.cache_dir={tmp_path}/cache")))
    files = Files(testbed.samples, [Setting("warm", 2, 4, 8)])
    for row in testbed.samples.rows[:3].tolist():
        Path(testbed.samples.index.path(row)).unlink()
    read_pass = read(files, Setting("cold", 1, 4, 8), 2)
    assert (read_pass.num_files, read_pass.num_unread) == (13, 3)
    for image in (root / "train").rglob("*.JPEG"):
        image.unlink()
    with pytest.raises(TurnFailed, match=r"cannot read .*: No such file or directory"):
        read(files, Setting("warm", 2, 4, 8), 1)
    with pytest.raises(DataError, match=r"none of 22 files under .* can be read \(data.root\): .*No such file"):
        files.bring()


def test_a_turn_has_the_requested_length(testbed: Testbed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first batch takes 0.5 s and each other batch 0.125 s; there are 11 batches on storage."""
    nums: list[int] = []

    def slow_at_first(files: Files, setting: Setting, num_each: int) -> ReadPass:
        nums.append(num_each)
        return ReadPass(0.375 + num_each / 8, num_each, 8 * num_each, 8000 * num_each)

    monkeypatch.setattr(study_read, "read", slow_at_first)
    warm, cold = Setting("warm", 1, 1, 8), Setting("cold", 1, 1, 8)
    files = Files(testbed.samples, [cold])
    assert turn(files, warm, 16).seconds == 16
    assert nums == [1, 8, 125]
    assert turn(files, warm, 0.1).num_batches == 1
    short = turn(files, cold, 16)
    assert nums[4:] == [1, 8, 11]
    (note,) = used_up(files, {cold: [short]}, 16)
    assert note.startswith(
        "All 90 files on storage were read before the end of 1 of 1 cold turns, the shortest after 1.8 s of 16 s"
    )
    assert not [*used_up(files, {cold: [short]}, 2), *used_up(files, {warm: [short]}, 16)]


def test_too_few_files_are_named(overrides: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"study=read: cold, .*batch 256: only 90 files; set smaller study.batch_size="
    ):
        run(small_request("read", tmp_path, *overrides, **GRID | {"batch_size": [256]}, state=["cold"]))


def test_blocks_keep_neighbours_together() -> None:
    rows = in_blocks(103, 8)
    assert sorted(rows.tolist()) == list(range(96))
    assert all((np.diff(block) == 1).all() and block[0] % 8 == 0 for block in rows.reshape(-1, 8))


def passes(megabytes: float, num_unread: int = 0, *, is_cold: bool = False) -> list[ReadPass]:
    """Five turns of a second each, of files of 100 kB in batches of 10."""
    num_files, num_bytes = int(10 * megabytes), int(1e6 * megabytes)
    return [
        ReadPass(1.0, int(megabytes), num_files, num_bytes + i * num_bytes // 100, num_unread, is_cold)
        for i in range(5)
    ]


def test_rates_and_whether_cold_files_are_verified() -> None:
    cold = Setting("cold", 1, 1, 10)
    deep, warm = Setting("cold", 1, 64, 10), Setting("warm", 1, 1, 10)
    table = read_table({cold: passes(10, is_cold=True), deep: passes(500), warm: passes(900)}, "a folder")
    assert [row[-1] for row in table.rows] == ["verified", "unverified", None]
    assert table.rows[1][4:8] == (510.0, "500.0-520.0", 5000.0, 1 / 500)
    assert (
        "50.00 times as much as cold, workers 1, in flight 1, batch 10 (over the rounds): faster" in table.sentences[0]
    )
    assert any(note.startswith("Unverified") for note in table.notes)
    assert [(curve.name, curve.x) for curve in table.plots[0].series] == [
        ("cold, workers 1", (1, 64)),
        ("warm, workers 1", (1,)),
    ]
    mixed = {cold: [*passes(10, is_cold=True), *passes(10)]}
    assert read_table(mixed, "").rows[0][-1] == "unverified", "one unverified round counts"


def test_notes_name_problems_only() -> None:
    def notes(num_unread: int) -> str:
        return "\n".join(read_table({Setting("cold", 2, 1, 10): passes(10, num_unread, is_cold=True)}, "").sentences)

    assert "Unverified" not in notes(0) and "could not be read" not in notes(0)
    assert "\n100 of 600 files could not be read" in notes(20)
