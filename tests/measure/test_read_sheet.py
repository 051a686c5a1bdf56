from imagenet_opt.measure.read_pass import ReadPass
from imagenet_opt.measure.read_sheet import Setting, read_sheet


def passes(megabytes: float) -> list[ReadPass]:
    """Five turns of a second each, of files of 100 kB in batches of 10."""
    return [ReadPass(1.0, int(megabytes), int(10 * megabytes), int(1e6 * megabytes * (1 + i / 100))) for i in range(5)]


def test_rates_and_what_the_kernel_says_of_cold_files() -> None:
    cold = Setting("cold", 1, 1, 10)
    deep, warm = Setting("cold", 1, 64, 10), Setting("warm", 1, 1, 10)
    sheet = read_sheet({cold: passes(10), deep: passes(500), warm: passes(900)}, {cold: True, deep: False}, "a folder")
    assert [row[-1] for row in sheet.rows] == ["verified", "unverified", None]
    assert sheet.rows[1][4:8] == (510.0, "500.0-520.0", 5000.0, 1 / 500)
    assert "50.00 times as much as cold, workers 1, in flight 1, batch 10: faster" in sheet.notes[0]
    assert any(note.startswith("Unverified") for note in sheet.notes)
    assert [(curve.name, curve.x) for curve in sheet.plots[0].series] == [
        ("cold, workers 1", (1, 64)),
        ("warm, workers 1", (1,)),
    ]


def test_cold_files_that_are_verified_need_no_word() -> None:
    cold = Setting("cold", 2, 1, 10)
    assert not any(note.startswith("Unverified") for note in read_sheet({cold: passes(9)}, {cold: True}, "").notes)
