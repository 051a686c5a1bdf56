from dataclasses import replace
from pathlib import Path

import pytest

from imagenet_opt.config.compose import composed
from imagenet_opt.errors import ConfigError
from imagenet_opt.probe.testbed import Testbed
from imagenet_opt.study.kinds import queue
from imagenet_opt.study.kinds.queue import Drained, Times, drain, queue_table, run, scattered_table, slowed
from imagenet_opt.study.kinds.queue_law import simulated_waits
from tests.conftest import write_images
from tests.study.studies import small_request


@pytest.fixture(scope="module")
def overrides(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    root = write_images(tmp_path_factory.mktemp("queue"), num_classes=3, per_class=30)
    return (f"data.root={root}", f"data.cache_dir={root}/cache", "data.batch_size=6", "data.image_size=32")


@pytest.mark.slow
def test_each_depth_beside_the_law(overrides: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"prefetch_factors": [1, 2], "num_steps": 9, "load_seconds": 0.06}
    request = small_request("queue", tmp_path, *overrides, **options)
    measured, calculated = run(request)
    assert [row[:2] for row in measured.rows] == [("1", 2.0), ("2", 3.0)]
    assert len(measured.columns) == len(measured.rows[0])
    assert "Calculated" in calculated.title
    for name in ("alone", "drain"):
        monkeypatch.setattr(queue, name, pytest.fail)
    assert run(request) == [measured, calculated]  # the cache has all turns and the loader's time


@pytest.mark.slow
def test_the_queue_is_full_before_the_first_step(overrides: tuple[str, ...]) -> None:
    """The DataLoader keeps prefetch_factor batches, the prefetcher's thread holds one more, also of a slow loader."""
    testbed = Testbed(composed(overrides))
    loading = slowed(testbed.loading, 0.6, num_requests=6)
    assert (loading.num_workers, loading.reads_in_flight) == (1, 1)
    assert loading.added_latency_ms == pytest.approx(100)
    drained = drain(testbed, replace(loading, prefetch_factor=1), load_seconds=0.6, compute_seconds=0.001, num_steps=6)
    assert drained.num_ready == 1 + 1
    assert len(drained.waits) == 6


def test_steps_that_need_more_batches_than_there_are_images(overrides: tuple[str, ...]) -> None:
    testbed = Testbed(composed(overrides))
    loading = replace(slowed(testbed.loading, None, 6), prefetch_factor=1)
    assert len(drain(testbed, loading, load_seconds=0.01, compute_seconds=0.0001, num_steps=40).waits) == 40


def test_a_loader_faster_than_the_device_is_refused(overrides: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="study=queue: load_over_compute"):
        run(small_request("queue", tmp_path, *overrides, load_over_compute=0.5))


def test_measured_turns_agree_with_the_law() -> None:
    waits = {depth: tuple(simulated_waits([2.66] * 30, 1.0, depth + 3)) for depth in (1, 2, 4, 24)}
    turns = {depth: [Drained(depth + 3, seconds, 2.66)] * 2 for depth, seconds in waits.items()}
    table = queue_table(turns, compute_seconds=1.0, decode_seconds=2.66)
    for depth, row in zip(turns, table.rows, strict=True):
        name, ready, hidden, simulated, _, seconds, _, law, steady, for_ever = row
        assert (name, ready) == (str(depth), depth + 3)
        assert hidden == simulated
        assert round(float(seconds or 0), 6) == round(float(law or 0), 6)
        assert for_ever == 2.66
        assert steady is None if depth == 24 else round(float(steady or 0), 6) == 2.66
    assert [row[2] for row in table.rows] == [6.0, 7.0, 10.0, 30.0]
    assert any("only postpones the effect of a slow loader" in note for note in table.notes)
    assert [len(curve.x) for curve in table.plots[0].series] == [4, 4, 4]


def test_a_batch_that_is_read_but_not_decoded_counts_in_part() -> None:
    """It needs 0.5 s of 2 s: batches are ready at 0.5, 2.5, 4.5 s and needed at 3, 4, 5, ..."""
    times = Times(load_seconds=2.0, compute_seconds=1.0, decode_seconds=0.5)
    assert times.read_ahead == 0.75
    waits = simulated_waits([2.0] * 20, 1.0, 4, unfinished_seconds=0.5)
    assert waits[:8] == [0, 0, 0, 0, 0, 0, 0.5, 1]
    turns = [Drained(3, tuple(waits), 2.0)]
    row = queue_table({1: turns}, 1.0, 0.5).rows[0]
    assert row[2:5] == (6.0, 6.0, 6.0)
    assert round(float(row[5] or 0), 6) == round(float(row[7] or 0), 6)


def test_a_fast_loader_has_no_end_by_the_law() -> None:
    row = queue_table({1: [Drained(3, (0.0,) * 9, load_seconds=0.5)]}, compute_seconds=1.0, decode_seconds=0.1).rows[0]
    assert row[2:5] == (9.0, 9.0, None)
    assert row[5] == row[7] == 1.0


def test_calculated_values_are_named_so() -> None:
    table = scattered_table()
    assert "not measured" in table.title
    idle = [float(row[1] or 0) for row in table.rows]
    assert idle == sorted(idle, reverse=True)
