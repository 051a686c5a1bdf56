"""The command as a user meets it: what it says, what it remembers, and what happens when files or lfs fail."""

import os
import re
import signal
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from PIL import Image

from imagenet_opt.cli import pack
from imagenet_opt.cli.hydrate import main, parse
from imagenet_opt.data.index.files import SplitFiles, files_of, status_of
from imagenet_opt.data.index.folder_index import scan_split
from imagenet_opt.errors import ConfigError, StorageFailed
from imagenet_opt.hydrate import lustre
from imagenet_opt.hydrate.hydrate import Part, Tally, hydrate
from imagenet_opt.hydrate.journal import Journal
from suites.faults.flaky_folder import flaky_folder, tell
from suites.faults.not_tried import NotTried
from tests.conftest import write_images
from tests.processes import Forked


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_images(tmp_path / "data", num_classes=2, per_class=6)


@pytest.fixture
def words(root: Path, tmp_path: Path) -> list[str]:
    return [f"data.root={root}", f"data.cache_dir={tmp_path}/cache"]


def numbered(folder: Path, num: int) -> SplitFiles:
    return SplitFiles(folder, num, lambda i: str(folder / f"{i:04d}.JPEG"), "f")


# What it says and remembers


def test_every_file_is_read_once(root: Path, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    num_bytes = sum(path.stat().st_size for path in root.glob("*/*/*"))
    main([*words, "--in-flight", "5"])
    first, last = capsys.readouterr().out.splitlines()
    assert re.fullmatch(
        r"a first read takes \d+\.\d ms \(median of 8 files, one at a time\); 16 files with 5 in flight: \S+ s if .*",
        first,
    )
    assert re.fullmatch(
        rf"hydrated 24 files, {num_bytes / 1e6:.2f} MB, in \S+ s: \d+ files/s, \S+ MB/s, 5 in flight; none failed", last
    )
    main(words)
    assert capsys.readouterr().out.startswith("nothing to do: earlier calls have touched all 24 files")
    main([*words, "--again"])
    assert "hydrated 24 files" in capsys.readouterr().out


def test_one_split_after_the_other(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    main([*words, "--splits", "val"])
    assert "hydrated 12 files" in capsys.readouterr().out
    main(words)
    assert "12 of 24 files were done by earlier calls; 12 are left" in capsys.readouterr().out


def test_a_journal_of_other_files_counts_for_nothing(
    root: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    main(words)
    (root / "train/class0/image000.JPEG").rename(root / "train/class0/other.JPEG")
    capsys.readouterr()
    main(words)
    said = capsys.readouterr().out
    assert f"{root}/train now has other files than before; starting a new journal" in said
    assert "12 of 24 files were done" in said  # val is as it was


def test_bad_files_are_listed_and_tried_again(root: Path, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    bad = root / "train/class1/image003.JPEG"
    bad.unlink()
    bad.symlink_to(root / "gone")
    with pytest.raises(SystemExit) as caught:
        main(words)
    said = capsys.readouterr().out
    assert caught.value.code == 1
    assert f"{bad}: No such file or directory\n" in said and "hydrated 23 files" in said
    assert said.endswith("1 could not be read (above)\n")
    bad.unlink()
    Image.new("RGB", (8, 8)).save(bad)
    capsys.readouterr()
    main(words)
    assert "23 of 24 files were done by earlier calls; 1 are left" in capsys.readouterr().out


def test_shards_are_files_too(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed = tmp_path / "packed"
    pack.main([f"data.root={root}", f"out={packed}", "shard_mb=0.005"])
    shards = list(packed.glob("*/*.tar"))
    capsys.readouterr()
    main([f"data.root={packed}", f"data.cache_dir={tmp_path}/cache"])
    num_bytes = sum(shard.stat().st_size for shard in shards)
    assert f"hydrated {len(shards)} files, {num_bytes / 1e6:.2f} MB" in capsys.readouterr().out
    assert len(shards) > 4


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--in-flight", "0"], "--in-flight 0 must be from 1 to 900"),
        (["--splits", "train,test"], "--splits train,test must be train, val or train,val"),
        (["--inflight"], "unrecognized arguments: --inflight (imagenet-opt hydrate --help)"),
    ],
)
def test_what_is_wrong_with_the_arguments_is_said(argv: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse(argv)


def test_a_data_set_is_needed_and_a_journal() -> None:
    with pytest.raises(ConfigError, match=r"data\.root is missing; add data\.root=FOLDER"):
        main(["--in-flight", "3"])


def test_a_cache_that_cannot_be_written_is_named(root: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    files = files_of(scan_split(root, "val"))
    with pytest.raises(ConfigError, match=r"cannot write a journal in .*; add data\.cache_dir=FOLDER"):
        Journal(tmp_path / "file", files)


# Stopped in the middle. A named pipe stands for a file whose first read does not come back.


@pytest.mark.slow
@pytest.mark.parametrize(("how", "status"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_a_stopped_hydration_goes_on(
    root: Path, words: list[str], tmp_path: Path, how: signal.Signals, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    main([*words, "--splits", "train"])
    slow = root / "val/class0/image002.JPEG"  # none of those that are measured first, were val alone
    slow.unlink()
    os.mkfifo(slow)
    command = [sys.executable, "-m", "imagenet_opt.cli.main", "hydrate", *words, "--in-flight", "2"]
    with (output := tmp_path / "output").open("w") as file:
        process = Forked(command, stdout=file, env=os.environ)
    journals = Path(words[1].removeprefix("data.cache_dir=")) / "hydrate"
    while process.poll() is None and sum(map(done_in, journals.glob("*.done"))) < 23:
        time.sleep(0.05)
    process.send_signal(how)
    assert process.wait(60) == status
    if how == signal.SIGINT:
        last = output.read_text().splitlines()[-1]
        assert last == "stopped with 1 file left; run the same command again to resume"
    slow.unlink()
    Image.new("RGB", (8, 8)).save(slow)
    capsys.readouterr()
    main(words)
    said = capsys.readouterr().out
    assert "23 of 24 files were done by earlier calls; 1 are left" in said and "hydrated 1 files" in said


def done_in(journal: Path) -> int:
    return journal.read_bytes().count(1)


# Storage that fails


def test_when_all_files_fail_the_storage_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno

    def fail(*arguments: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    part = part_of(tmp_path, 40)
    opened = open
    monkeypatch.setattr(os, "open", fail)
    monkeypatch.setattr("builtins.open", lambda file, *a, **k: fail() if "JPEG" in str(file) else opened(file, *a, **k))
    with pytest.raises(StorageFailed, match=r"fails: Input/output error for 0\.01 s, reading .* and other files"):
        hydrate([part], Tally(), in_flight=8, patience=0.01)
    assert len(part.journal.left) == 40


def part_of(folder: Path, num: int, size: int = 10) -> Part:
    files = numbered(folder / "images", num)
    files.folder.mkdir()
    for i in range(num):
        Path(files.path(i)).write_bytes(bytes(size))
    return Part(files, Journal(folder / "journal", files))


def test_one_file_that_fails_on_a_fuse_mount_is_listed(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mount = tmp_path / "mount"
    try:
        with flaky_folder(root, mount) as control:
            tell(control, errno=5, name="val/class1/image002")
            with pytest.raises(SystemExit):
                main([f"data.root={mount}", f"data.cache_dir={tmp_path}/cache", "data.read_timeout=0.4"])
    except NotTried as error:
        pytest.skip(str(error))
    said = capsys.readouterr().out
    assert f"{mount}/val/class1/image002.JPEG: Input/output error\n" in said and "hydrated 23 files" in said


# Lustre: answers of `lfs` as recorded, given by a stand-in

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
    """A PATH with room for an `lfs`, on a mount that says lustre."""
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


def test_lustre_is_asked_to_bring_released_files_back(tmp_path: Path, bin_folder: Path) -> None:
    write_lfs(bin_folder)
    part = part_of(tmp_path, 7, size=100)
    for i in (1, 4, 5):
        (bin_folder / f"{i:04d}.JPEG").write_text("...")  # released
    done: list[int] = []
    lustre.restore(part.files, range(7), in_flight=4, on_done=done.append, wait_seconds=0)
    assert sorted(done) == list(range(7))
    asked = (bin_folder / "asked").read_text().splitlines()
    assert asked[:3] == ["hsm_state 4", "hsm_restore 1", "hsm_state 1"]
    assert sum(int(line.split()[1]) for line in asked if line.startswith("hsm_restore")) == 3


def test_what_lfs_may_not_do_is_read(tmp_path: Path, bin_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_lfs(bin_folder, refuses=True)
    part, tally = part_of(tmp_path, 6, size=100), Tally()
    (bin_folder / "0003.JPEG").write_text("...")
    hydrate([part], tally, in_flight=3, patience=1)
    assert (tally.num_files, tally.num_bytes, len(part.journal.left)) == (6, 600, 0)
    assert "Cannot send HSM request" in caplog.text and "reading the remaining files instead" in caplog.text


def test_files_that_do_not_come_back_are_given_up(tmp_path: Path, bin_folder: Path) -> None:
    file = bin_folder / "lfs"
    file.write_text(
        '#!/bin/sh\n[ $1 = hsm_restore ] || echo "$2: (0x0000000d) released exists archived, archive_id:1"\n'
    )
    file.chmod(0o755)
    part = part_of(tmp_path, 1)
    with pytest.raises(lustre.LfsFailed, match="Lustre restored no file for 0 s"):
        lustre.restore(part.files, [0], in_flight=4, on_done=lambda i: None, wait_seconds=0, patience=0)


def test_verify_counts_what_lustre_released_and_forgets_it(
    root: Path, words: list[str], bin_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(words)
    released = root / "train/class0/image001.JPEG"
    released.write_bytes(b"")
    os.truncate(released, 100_000)  # no blocks, as a released file
    capsys.readouterr()
    main([*words, "--verify"])
    said = capsys.readouterr().out
    assert f"{root}/train: Lustre does not hold the data of 1 of 12 files; the same command again brings" in said
    assert f"{root}/val: Lustre does not hold the data of 0 of 12 files\n" in said
    main(words)
    assert "hydrated 1 files, 0.10 MB" in capsys.readouterr().out


def test_only_lustre_can_be_verified(words: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"--verify needs Lustre; .* does not tell which files it holds"):
        main([*words, "--verify"])


def test_sizes_are_those_of_the_files(root: Path) -> None:
    index = scan_split(root, "train")
    wanted = [os.path.getsize(index.path(i)) for i in range(len(index))]
    (root / "train/class1/image005.JPEG").unlink()
    found = status_of(files_of(index)).sizes
    np.testing.assert_array_equal(found, [*wanted[:-1], -1])
