"""The hydrate command: its output, a stop, and files that fail."""

import errno
import os
import re
from pathlib import Path

import pytest

from imagenet_opt.cli import pack
from imagenet_opt.cli.hydrate import main, parse
from imagenet_opt.errors import ConfigError, StorageFailed
from imagenet_opt.hydrate.hydrate import Tally, hydrate
from tests.cli.hydrations import write_split


def test_every_file_is_read(tiny_root: Path, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    num_bytes = sum(path.stat().st_size for path in tiny_root.glob("*/*/*"))
    main([*words, "--in-flight", "5"])
    assert capsys.readouterr().out.startswith(f"hydrated 24 files, {num_bytes / 1e6:.2f} MB, in ")
    main([*words, "--splits", "val"])
    assert "hydrated 12 files" in capsys.readouterr().out


def test_bad_files_are_listed(tiny_root: Path, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    bad = tiny_root / "train/class1/image003.JPEG"
    bad.unlink()
    bad.symlink_to(tiny_root / "gone")
    with pytest.raises(SystemExit) as caught:
        main(words)
    printed = capsys.readouterr().out
    assert caught.value.code == 1
    assert f"{bad}: No such file or directory\n" in printed and "hydrated 23 files" in printed
    assert printed.endswith("1 could not be read (above)\n")


def test_shards_are_files_too(tiny_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed = tmp_path / "packed"
    pack.main([f"data.root={tiny_root}", f"out={packed}", "shard_mb=0.005"])
    shards = list(packed.glob("*/*.tar"))
    capsys.readouterr()
    main([f"data.root={packed}", f"data.cache_dir={tmp_path}/cache"])
    num_bytes = sum(shard.stat().st_size for shard in shards)
    assert f"hydrated {len(shards)} files, {num_bytes / 1e6:.2f} MB" in capsys.readouterr().out
    assert len(shards) > 4


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--in-flight", "0"], "--in-flight 0"),
        (["--splits", "train,test"], "--splits train,test"),
        (["--inflight"], "--inflight"),
    ],
)
def test_unsuitable_arguments_are_refused(argv: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse(argv)


def test_a_missing_data_root_is_named() -> None:
    with pytest.raises(ConfigError, match=r"data\.root"):
        main(["--in-flight", "3"])


def test_when_all_files_fail_the_command_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    fetch = write_split(tmp_path, 40)
    opened = open
    monkeypatch.setattr(os, "open", fail)
    monkeypatch.setattr("builtins.open", lambda file, *a, **k: fail() if "JPEG" in str(file) else opened(file, *a, **k))
    with pytest.raises(StorageFailed, match="Input/output error"):
        hydrate([fetch], Tally(), in_flight=8, patience=0.01)
    assert fetch.left.all()
