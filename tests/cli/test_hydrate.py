"""The hydrate command: its output, and files that fail."""

import os
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from imagenet_opt.cli.hydrate import main
from imagenet_opt.pack.image import PackOptions
from imagenet_opt.pack.pack import pack


@pytest.fixture
def words(root: Path, tmp_path: Path) -> list[str]:
    return [f"data.root={root}", f"data.cache_dir={tmp_path}/cache"]


def test_every_file_is_read_and_bad_files_are_listed(
    root: Path, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    num_bytes = sum(path.stat().st_size for path in root.glob("*/*/*"))
    main([*words, "--in-flight", "5"])
    assert f"fetched 72 files, {num_bytes / 1e6:.2f} MB" in capsys.readouterr().out
    pack(root, tmp_path / "packed", PackOptions(shard_mb=0.005))
    shards = list((tmp_path / "packed").glob("*/*.tar"))
    main([*words, f"data.root={tmp_path}/packed"])
    num_bytes = sum(shard.stat().st_size for shard in shards)
    assert f"fetched {len(shards)} files, {num_bytes / 1e6:.2f} MB" in capsys.readouterr().out and len(shards) > 4
    bad = root / "train/class1/image003.JPEG"
    bad.unlink()
    bad.symlink_to(root / "gone")
    with pytest.raises(SystemExit, match="1"):
        main(words)
    printed = capsys.readouterr().out
    assert f"{bad}: No such file or directory\n" in printed and "fetched 71 files" in printed


def test_on_lustre_only_files_without_data_are_fetched(
    root: Path, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mount = SimpleNamespace(mountpoint=str(root.parent), fstype="lustre", device="fsx", opts="")
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: [mount])
    for file in root.glob("*/*/*"):
        file.write_bytes(bytes(8192))
    main(words)
    assert "fetched" not in capsys.readouterr().out
    released = root / "train/class0/image001.JPEG"
    released.write_bytes(b"")
    os.truncate(released, 100_000)  # no blocks, as a released file
    main(words)
    output = capsys.readouterr().out
    assert f"{root}/train: " in output and " 1 of 36 files" in output and "fetched 1 files, 0.10 MB" in output
