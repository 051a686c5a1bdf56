"""Files that Lustre has archived, and the limits of its client, as its tools print them."""

import os
from pathlib import Path

import pytest

from imagenet_opt.measure.storage.lustre import (
    looks_released,
    parse_hsm_states,
    read_hsm_states,
)

OUTPUT = """\
/fsx/train/n01440764/a.JPEG: (0x0000000d) released exists archived, archive_id:1
/fsx/train/n01440764/b: (0x1) c.JPEG: (0x00000009) exists archived, archive_id:1
/fsx/train/n01440764/d.JPEG: (0x0000000b) exists dirty archived, archive_id:1
/fsx/train/n01440764/e.JPEG: (0x00000000)
Cannot get HSM state of /fsx/train/f.JPEG: No such file or directory
"""


def test_the_states_of_lfs() -> None:
    folder = "/fsx/train/n01440764"
    expected = {f"{folder}/a.JPEG": 13, f"{folder}/b: (0x1) c.JPEG": 9, f"{folder}/d.JPEG": 11, f"{folder}/e.JPEG": 0}
    assert parse_hsm_states(OUTPUT) == expected


def test_lfs_is_used_if_installed_and_else_the_blocks_decide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hole has no blocks either."""
    monkeypatch.setenv("PATH", str(tmp_path))
    there, hole = tmp_path / "there", tmp_path / "hole"
    there.write_bytes(os.urandom(20_000))
    hole.touch()
    os.truncate(hole, 20_000)
    with there.open("rb") as file:
        os.fsync(file.fileno())  # blocks are counted once they are laid out
    states = read_hsm_states([str(there), str(hole), str(tmp_path / "absent")])
    assert states == {str(there): 0, str(hole): 4}
    assert not looks_released(size=0, num_blocks=0)
    lfs = tmp_path / "lfs"
    lfs.write_text('#!/bin/sh\nshift\nfor file; do echo "$file: (0x0000000d) released exists archived"; done\n')
    lfs.chmod(0o755)
    assert read_hsm_states(["/fsx/a b.JPEG"]) == {"/fsx/a b.JPEG": 13}
