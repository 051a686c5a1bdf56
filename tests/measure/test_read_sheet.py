from imagenet_opt.measure.read_sheet import Setting, read_sheet
from imagenet_opt.measure.storage.parallel_reads import ReadPass


def passes(megabytes: float, num_unread: int = 0, *, is_cold: bool = False) -> list[ReadPass]:
    """Five turns of a second each, of files of 100 kB in batches of 10."""
    num_files, num_bytes = int(10 * megabytes), int(1e6 * megabytes)
    return [
        ReadPass(1.0, int(megabytes), num_files, num_bytes + i * num_bytes // 100, num_unread, is_cold)
        for i in range(5)
    ]


def test_rates_and_what_the_kernel_says_of_cold_files() -> None:
    cold = Setting("cold", 1, 1, 10)
    deep, warm = Setting("cold", 1, 64, 10), Setting("warm", 1, 1, 10)
    sheet = read_sheet({cold: passes(10, is_cold=True), deep: passes(500), warm: passes(900)}, "a folder")
    assert [row[-1] for row in sheet.rows] == ["verified", "unverified", None]
    assert sheet.rows[1][4:8] == (510.0, "500.0-520.0", 5000.0, 1 / 500)
    assert (
        "50.00 times as much as cold, workers 1, in flight 1, batch 10 (geometric means over the rounds): faster"
        in sheet.notes[0]
    )
    assert any(note.startswith("Unverified") for note in sheet.notes)
    assert [(curve.name, curve.x) for curve in sheet.plots[0].series] == [
        ("cold, workers 1", (1, 64)),
        ("warm, workers 1", (1,)),
    ]


def test_cold_files_that_are_verified_need_no_word() -> None:
    cold = Setting("cold", 2, 1, 10)
    notes = read_sheet({cold: passes(9, is_cold=True)}, "").notes
    assert not any(note.startswith("Unverified") or "could not be read" in note for note in notes)


def test_a_cold_setting_is_verified_in_all_rounds_or_not() -> None:
    found = {Setting("cold", 1, 1, 10): [*passes(10, is_cold=True), *passes(10)]}
    assert read_sheet(found, "").rows[0][-1] == "unverified"


def test_files_that_could_not_be_read_are_counted() -> None:
    sheet = read_sheet({Setting("cold", 1, 1, 10): passes(10, 20, is_cold=True)}, "")
    assert any(note.startswith("100 of 600 files could not be read") for note in sheet.notes)
