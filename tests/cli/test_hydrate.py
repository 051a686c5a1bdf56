"""The hydrate command: its output, and files that fail."""

import os
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from imagenet_opt.cli.hydrate import main
from imagenet_opt.pack.image import PackOptions
from imagenet_opt.pack.pack import pack


def test_every_file_is_read_and_bad_files_are_listed(
    tiny_root: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    num_bytes = sum(path.stat().st_size for path in tiny_root.glob("*/*/*"))
    main([*words, "--in-flight", "5"])
    assert capsys.readouterr().out.startswith(f"fetched 24 files, {num_bytes / 1e6:.2f} MB, in ")
    bad = tiny_root / "train/class1/image003.JPEG"
    bad.unlink()
    bad.symlink_to(tiny_root / "gone")
    with pytest.raises(SystemExit, match="1"):
        main(words)
    printed = capsys.readouterr().out
    assert f"{bad}: No such file or directory\n" in printed and "fetched 23 files" in printed
    assert printed.endswith("1 could not be read (above)\n")


def test_shards_are_files_too(tiny_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed = tmp_path / "packed"
    pack(tiny_root, packed, PackOptions(shard_mb=0.005))
    shards = list(packed.glob("*/*.tar"))
    main([f"data.root={packed}", f"data.cache_dir={tmp_path}/cache"])
    num_bytes = sum(shard.stat().st_size for shard in shards)
    assert f"fetched {len(shards)} files, {num_bytes / 1e6:.2f} MB" in capsys.readouterr().out
    assert len(shards) > 4


def test_on_lustre_only_files_without_data_are_fetched(
    tiny_root: Path, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mount = SimpleNamespace(mountpoint=str(tiny_root.parent), fstype="lustre", device="fsx", opts="")
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: [mount])
    for file in tiny_root.glob("*/*/*"):
        file.write_bytes(bytes(8192))
    main(words)
    assert capsys.readouterr().out.endswith("nothing to do: no file is left to fetch\n")
    released = tiny_root / "train/class0/image001.JPEG"
    released.write_bytes(b"")
    os.truncate(released, 100_000)  # no blocks, as a released file
    main(words)
    output = capsys.readouterr().out
    assert f"{tiny_root}/train: Lustre does not hold the data of 1 of 12 files\n" in output
    assert "fetched 1 files, 0.10 MB" in output
