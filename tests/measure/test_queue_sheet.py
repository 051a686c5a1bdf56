from imagenet_opt.measure.queue_law import simulated_waits
from imagenet_opt.measure.queue_sheet import Drained, Times, queue_sheet, scattered_sheet


def test_turns_that_follow_the_law_stand_beside_it() -> None:
    waits = {depth: tuple(simulated_waits([2.66] * 30, 1.0, depth + 3)) for depth in (1, 2, 4, 24)}
    turns = {depth: [Drained(depth + 3, seconds, 2.66)] * 2 for depth, seconds in waits.items()}
    sheet = queue_sheet(turns, compute_seconds=1.0, decode_seconds=2.66)
    for depth, row in zip(turns, sheet.rows, strict=True):
        name, ready, hidden, simulated, _, seconds, _, law, steady, for_ever = row
        assert (name, ready) == (str(depth), depth + 3)
        assert hidden == simulated
        assert round(float(seconds or 0), 6) == round(float(law or 0), 6)
        assert for_ever == 2.66
        assert steady is None if depth == 24 else round(float(steady or 0), 6) == 2.66
    assert [row[2] for row in sheet.rows] == [6.0, 7.0, 10.0, 30.0]
    assert any("postpones" in note for note in sheet.notes)
    assert [len(curve.x) for curve in sheet.plots[0].series] == [4, 4, 4]


def test_a_batch_that_is_read_and_not_decoded_counts_for_what_is_done_of_it() -> None:
    """Of 2 seconds half a second is left of it: batches are made at 0.5, 2.5, 4.5 and wanted at 3, 4, 5, ..."""
    times = Times(load_seconds=2.0, compute_seconds=1.0, decode_seconds=0.5)
    assert times.read_ahead == 0.75
    waits = simulated_waits([2.0] * 20, 1.0, 4, unfinished_seconds=0.5)
    assert waits[:8] == [0, 0, 0, 0, 0, 0, 0.5, 1]
    turns = [Drained(3, tuple(waits), 2.0)]
    row = queue_sheet({1: turns}, 1.0, 0.5).rows[0]
    assert row[2:5] == (6.0, 6.0, 6.0)
    assert round(float(row[5] or 0), 6) == round(float(row[7] or 0), 6)


def test_a_loader_that_turned_out_quick_enough_has_no_end_by_law() -> None:
    row = queue_sheet({1: [Drained(3, (0.0,) * 9, load_seconds=0.5)]}, compute_seconds=1.0, decode_seconds=0.1).rows[0]
    assert row[2:5] == (9.0, 9.0, None)
    assert row[5] == row[7] == 1.0


def test_what_is_calculated_says_so() -> None:
    sheet = scattered_sheet()
    assert "not measured" in sheet.title
    idle = [float(row[1] or 0) for row in sheet.rows]
    assert idle == sorted(idle, reverse=True)
