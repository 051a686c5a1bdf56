"""Files that are written completely or not at all."""

from pathlib import Path

from imagenet_opt.atomic_file import replacing


def test_two_writers_of_one_file_never_mix(tmp_path: Path) -> None:
    """As two containers whose host names and process numbers are equal."""
    file = tmp_path / "state.json"
    with replacing(file) as slow, slow.open("w") as opened:
        opened.write("slow, ")
        with replacing(file) as quick:
            quick.write_text("quick")
        assert file.read_text() == "quick"
        opened.write("whole")
    assert file.read_text() == "slow, whole" and list(tmp_path.iterdir()) == [file]
