"""Files that Lustre has released are brought back by its own command."""

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from imagenet_opt.cli.hydrate import main
from imagenet_opt.hydrate import lustre
from imagenet_opt.hydrate.hydrate import Tally, hydrate
from tests.cli.hydrations import write_split

LFS = """#!{python}
import os, sys
folder, (action, *files) = {folder!r}, sys.argv[1:]
print(action, len(files), file=open(folder + "/asked", "a"))
for file in files:
    marks = folder + "/" + os.path.basename(file)
    if action == "hsm_state":
        if not os.path.exists(marks):  # there all the time
            print(f"{{file}}: (0x00000009) exists archived, archive_id:1")
        elif os.path.getsize(marks) == 1:  # restored, after one more look
            print(f"{{file}}: (0x0000000d) released exists archived, archive_id:1")
            open(marks, "a").write("r")
        elif os.path.getsize(marks) == 2:
            print(f"{{file}}: (0x00000009) exists archived, archive_id:1")
        else:
            print(f"{{file}}: (0x0000000d) released exists archived, archive_id:1")
    elif {refuses}:
        sys.exit(f"Cannot send HSM request (use of {{file}}): Operation not permitted")
    else:
        open(marks, "w").write("r")
"""


@pytest.fixture
def bin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on PATH for a fake `lfs`; the mount claims to be Lustre."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    mount = SimpleNamespace(mountpoint=str(tmp_path), fstype="lustre", device="fsx", opts="")
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: [mount])
    yield folder


def write_lfs(folder: Path, *, refuses: bool = False) -> None:
    file = folder / "lfs"
    file.write_text(LFS.format(python=sys.executable, folder=str(folder), refuses=refuses))
    file.chmod(file.stat().st_mode | stat.S_IXUSR)


def test_lfs_restores_released_files(tmp_path: Path, bin_folder: Path) -> None:
    write_lfs(bin_folder)
    fetch = write_split(tmp_path, 7, size=100)
    for i in (1, 4, 5):
        (bin_folder / f"{i:04d}.JPEG").write_text("...")  # released
    done: list[int] = []
    lustre.restore(fetch.files, range(7), in_flight=4, on_done=done.append, wait_seconds=0)
    assert sorted(done) == list(range(7))
    asked = (bin_folder / "asked").read_text().splitlines()
    assert asked[:3] == ["hsm_state 4", "hsm_restore 1", "hsm_state 1"]
    assert sum(int(line.split()[1]) for line in asked if line.startswith("hsm_restore")) == 3


def test_files_are_read_when_lfs_is_refused(tmp_path: Path, bin_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_lfs(bin_folder, refuses=True)
    fetch, tally = write_split(tmp_path, 6, size=100), Tally()
    (bin_folder / "0003.JPEG").write_text("...")
    hydrate([fetch], tally, in_flight=3, patience=1)
    assert (tally.num_files, tally.num_bytes, fetch.left.any()) == (6, 600, False)
    assert "Cannot send HSM request" in caplog.text and "reading the remaining files instead" in caplog.text


def test_restoring_ends_when_no_file_is_restored(tmp_path: Path, bin_folder: Path) -> None:
    file = bin_folder / "lfs"
    file.write_text(
        '#!/bin/sh\n[ $1 = hsm_restore ] || echo "$2: (0x0000000d) released exists archived, archive_id:1"\n'
    )
    file.chmod(0o755)
    fetch = write_split(tmp_path, 1)
    with pytest.raises(lustre.LfsFailed, match="Lustre restored no file for 0 s"):
        lustre.restore(fetch.files, [0], in_flight=4, on_done=lambda i: None, wait_seconds=0, patience=0)


def test_on_lustre_only_files_without_data_are_fetched(
    tiny_root: Path, words: list[str], bin_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    released = tiny_root / "train/class0/image001.JPEG"
    released.write_bytes(b"")
    os.truncate(released, 100_000)  # no blocks, as a released file
    for file in tiny_root.glob("*/*/*"):
        if file != released:
            file.write_bytes(bytes(8192))
    main([*words, "--splits", "val"])
    assert capsys.readouterr().out.endswith("nothing to do: Lustre holds the data of all files\n")
    main(words)
    output = capsys.readouterr().out
    assert f"{tiny_root}/train: Lustre does not hold the data of 1 of 12 files\n" in output
    assert "hydrated 1 files, 0.10 MB" in output
