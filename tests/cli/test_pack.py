"""The command as a user meets it: what it says, and what is left when it is stopped, killed or out of space."""

import errno
import io
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image

from imagenet_opt.cli.pack import main, parse
from imagenet_opt.data.index.shard_index import is_packed, open_shards
from imagenet_opt.errors import ConfigError, PackStopped, ShardMismatch


def jpeg(seed: int, side: int = 64) -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "JPEG")
    return file.getvalue()


def images(root: Path, *, per_class: int, side: int = 64) -> Path:
    for number, split in enumerate(("train", "val")):
        for label, name in enumerate("ab"):
            (root / split / name).mkdir(parents=True)
            for i in range(per_class):
                seed = (2 * number + label) * per_class + i
                (root / split / name / f"{i:03d}.JPEG").write_bytes(jpeg(seed, side))
    return root


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def start(*arguments: str) -> subprocess.Popen[str]:
    """In a process group of its own, as a terminal starts it."""
    command = [sys.executable, "-m", "imagenet_opt.cli.main", "pack", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def workers_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    children = psutil.Process(process.pid).children(recursive=True)
    return [child for child in children if any("spawn_main" in word for word in child.cmdline())]


# What it says


def test_a_pack_is_one_line_and_opens(images_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    (tmp_path / "data").symlink_to(images_root)
    main([f"data.root={tmp_path}/data", f"out={out}", "shard_mb=0.03", "workers=2"])
    said = capsys.readouterr()
    size_in = sum(path.stat().st_size for path in images_root.glob("*/*/*")) / 1e6
    size_out = sum(path.stat().st_size for path in out.glob("*/*.tar")) / 1e6
    assert re.fullmatch(
        rf"packed {out}: 78 images, 0 rejected, {size_in:.2f} MB in, {size_out:.2f} MB out, \d+\.\d s, \d+ images/s\n",
        said.out,
    )
    assert said.err.splitlines()[-1].startswith("packing: 78 of 78 images, ")
    assert len(said.err.splitlines()) <= 10
    assert all(is_packed(out / split) and len(open_shards(out / split)) == 39 for split in ("train", "val"))

    main([f"data.root={images_root}", f"out={out}", "shard_mb=0.03"])
    said = capsys.readouterr()
    assert said.out.startswith(f"{out} is packed already: 78 images, 0 rejected, ")
    assert said.out.endswith("; nothing to do\n")


def test_rejected_files_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = images(tmp_path / "data", per_class=2)
    (root / "val/a/000.JPEG").write_bytes(b"")
    main([f"data.root={root}", f"out={tmp_path}/out"])
    assert "7 images, 1 rejected (rejected.csv says why), " in capsys.readouterr().out


def test_folders_sizes_and_labels_are_taken_from_the_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = images(tmp_path / "data", per_class=2)
    (root / "train").rename(root / "training")
    shutil.rmtree(root / "val")
    (root / "flat").mkdir()
    (root / "flat/one.JPEG").write_bytes(jpeg(9))
    (tmp_path / "labels.txt").write_text("one.JPEG b\n")
    words = ["data.train_folder=training", "data.val_folder=flat", f"val_labels={tmp_path}/labels.txt", "max_side=32"]
    main([f"data.root={root}", f"out={tmp_path}/out", *words])
    assert open_shards(tmp_path / "out/val").labels.tolist() == [1]
    index = open_shards(tmp_path / "out/train")
    with tarfile.open(index.folder / index.shards[0]) as archive:
        sizes = [Image.open(archive.extractfile(member)).size for member in archive if member.name.endswith(".jpg")]
    assert sizes == [(32, 32)] * 4


def test_verify_says_what_is_whole_and_what_is_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, out = images(tmp_path / "data", per_class=2), tmp_path / "out"
    main([f"data.root={root}", f"out={out}"])
    capsys.readouterr()
    main([f"out={out}", "--verify"])
    assert capsys.readouterr().out == f"{out} is whole: all 8 images are as they were packed\n"

    index = open_shards(out / "val")
    with open(out / "val/shard-00000.tar", "r+b") as file:
        file.seek(int(index.offsets[2]) + 700)
        file.write(b"damaged")
    done = finish(start(f"out={out}", "--verify"))
    assert done[:2] == (2, f"{out}/val/shard-00000.tar: b/000.JPEG: the bytes do not match the checksum\n")
    assert (
        done[2].splitlines()[-1].startswith(f"ShardMismatch: {out} (out) is damaged in 1 places, listed above; remove ")
    )

    (out / "val/shard-00000.tar").unlink()
    main([f"data.root={root}", f"out={out}"])
    main([f"out={out}", "--verify"])
    assert capsys.readouterr().out.endswith("is whole: all 8 images are as they were packed\n")


def test_there_must_be_a_pack_to_verify(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no pack in .*/train \(out\); expected the out=FOLDER that "):
        main([f"out={tmp_path}", "--verify"])


def test_an_unfinished_pack_is_to_be_finished_not_verified(tmp_path: Path) -> None:
    for split in ("train", "val"):
        (tmp_path / split).mkdir()
        (tmp_path / split / "plan.json").write_text("{}")
    with pytest.raises(ShardMismatch, match=r"no finished pack.*same pack command again") as caught:
        main([f"out={tmp_path}", "--verify"])
    assert f"out={tmp_path} " in str(caught.value) and "--verify" not in str(caught.value)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "data.root is missing; add data.root=FOLDER (imagenet-opt pack --help)"),
        (["data.root=a"], "out is missing; add out=FOLDER"),
        (["--verify"], "out is missing; add out=FOLDER"),
        (["out=a", "--verfy"], "there is no key --verfy; did you mean --verify?"),
        (["data.root=a", "out=b", "maxside=3"], "there is no key maxside; did you mean max_side=?"),
        (["root=a"], "there is no key root; did you mean data.root=?"),
        (["zzz=1"], "there is no key zzz; expected data.root, out, max_side, "),
        (["data.root=a", "out="], "out has no value; expected out=VALUE"),
        (["data.root=a", "out=b", "max_side=0"], "max_side=0 must be a whole number from 1 to 65500"),
        (["data.root=a", "out=b", "quality=96"], "quality=96 must be a whole number from 1 to 95"),
        (["data.root=a", "out=b", "workers=all"], "workers=all must be a whole number from 1 to 1024, or auto"),
        (["data.root=a", "out=b", "seed=-1"], "seed=-1 must be a whole number from 0 to "),
        (["data.root=a", "out=b", "shard_mb=nan"], "shard_mb=nan must be a number of megabytes"),
    ],
)
def test_what_is_wrong_with_the_arguments_is_said(argv: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse(argv)


def test_a_folder_that_looks_like_a_number_stays_a_folder() -> None:
    arguments = parse(["data.root=1e3", "out=2026_10_04/a=b"])
    assert (arguments.root, arguments.out) == (Path("1e3"), Path("2026_10_04/a=b"))


# Stopped. One image comes through a pipe, so that the command stands there until the test goes on.


@pytest.fixture(params=["train/a/004.JPEG", "val/b/001.JPEG"])
def piped(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """That image of a data set of 32."""
    pipe = images(tmp_path / "data", per_class=8) / request.param
    pipe.unlink()
    os.mkfifo(pipe)
    return Path(pipe)


def reach(pipe: Path, process: subprocess.Popen[str]) -> int:
    """Wait until the command reads from the pipe; returns the end to write into."""
    while process.poll() is None:
        try:
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            assert error.errno == errno.ENXIO, error
            time.sleep(0.01)
    raise AssertionError(finish(process))


def feed(pipe: Path, process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Let the command end."""
    descriptor = reach(pipe, process)
    os.write(descriptor, jpeg(1000))
    os.close(descriptor)
    return finish(process)


def words(pipe: Path, out: Path) -> list[str]:
    return [f"data.root={pipe.parents[2]}", f"out={out}", "shard_mb=0.02", "workers=1"]


@pytest.fixture
def whole(piped: Path, tmp_path: Path) -> dict[str, bytes]:
    """What an undisturbed pack makes."""
    code, said, _ = feed(piped, start(*words(piped, tmp_path / "undisturbed")))
    assert code == 0 and "32 images, 0 rejected" in said
    return contents(tmp_path / "undisturbed")


def shards(files: dict[str, bytes]) -> set[str]:
    return {name for name in files if name.endswith(".tar")}


@pytest.mark.slow
def test_after_kill_9_it_goes_on_to_the_same_bytes(piped: Path, whole: dict[str, bytes], tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start(*words(piped, out))
    descriptor = reach(piped, process)
    workers = workers_of(process)
    process.kill()
    finish(process)
    assert len(workers) == 1
    assert psutil.wait_procs(workers, timeout=20)[1] == []  # none goes on in secret
    os.close(descriptor)

    half = contents(out)
    finished = shards(half)
    assert finished and finished < shards(whole)
    assert all(half[name] == whole[name] for name in finished)
    assert any(name.endswith(".new") for name in half) and "val/index.json" not in half
    untouched = out / min(finished)
    before = untouched.stat().st_mtime_ns
    os.unlink(out / f"{max(finished).replace('shard', 'parts/shard')}.json")  # as if killed a moment earlier

    code, said, _ = feed(piped, start(*words(piped, out)))
    assert code == 0 and said.startswith(f"packed {out}: 32 images, 0 rejected, ")
    assert contents(out) == whole
    assert len(finished) == 1 or untouched.stat().st_mtime_ns == before


@pytest.mark.parametrize("piped", ["val/b/001.JPEG"], indirect=True)
def test_ctrl_c_ends_cleanly_and_it_goes_on(piped: Path, whole: dict[str, bytes], tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start(*words(piped, out))
    descriptor = reach(piped, process)
    os.killpg(process.pid, signal.SIGINT)
    code, said, err = finish(process)
    os.close(descriptor)
    assert (code, said) == (130, "") and "Traceback" not in err
    assert err.splitlines()[-1] == "stopped; what is packed is kept; run the same command again to resume"
    assert not list(out.rglob(".*.new")) and not list(out.glob("val/index.json"))
    assert feed(piped, start(*words(piped, out)))[0] == 0
    assert contents(out) == whole


@pytest.mark.parametrize("piped", ["train/a/004.JPEG"], indirect=True)
def test_a_killed_process_is_one_line_and_it_goes_on(piped: Path, whole: dict[str, bytes], tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start(*words(piped, out))
    descriptor = reach(piped, process)
    workers_of(process)[0].kill()
    code, said, err = finish(process)
    os.close(descriptor)
    assert (code, said) == (2, "") and "Traceback" not in err
    assert (
        "PackStopped: a process of the pack was killed, perhaps because memory ran out; run the same command again"
        in err
    )
    assert feed(piped, start(*words(piped, out)))[0] == 0
    assert contents(out) == whole


@pytest.mark.parametrize("piped", ["train/a/004.JPEG"], indirect=True)
def test_a_source_that_goes_away_stops_it(piped: Path, tmp_path: Path) -> None:
    process = start(*words(piped, tmp_path / "out"))
    descriptor = reach(piped, process)
    (tmp_path / "data").rename(tmp_path / "unmounted")
    os.write(descriptor, jpeg(1000))
    os.close(descriptor)
    code, said, err = finish(process)
    assert (code, said) == (2, "")
    assert re.search(
        rf"PackStopped: {tmp_path}/data/\w+ has disappeared \(No such file or directory\); restore the storage", err
    )


def test_a_full_disk_is_one_line_and_it_goes_on_when_there_is_room(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: the same calls fail, with another word for it."""
    root = images(tmp_path / "data", per_class=4)
    (root / "val/a/002.JPEG").write_bytes(jpeg(99, side=400))
    arguments = [f"data.root={root}", "shard_mb=0.02", "workers=1"]
    main([*arguments, f"out={tmp_path}/undisturbed"])
    whole, out = contents(tmp_path / "undisturbed"), tmp_path / "out"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, limits[1]))
    try:
        with pytest.raises(PackStopped) as caught:
            main([*arguments, f"out={out}"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    words = (
        rf"cannot write {out}/val/shard-0000\d\.tar: File too large; .* run the same command again: it resumes where .*"
    )
    assert re.fullmatch(words, str(caught.value))
    half = contents(out)
    assert len(shards(half)) > 2 and not any(name.endswith(".new") for name in half)
    assert all(half[name] == whole[name] for name in shards(half))
    main([*arguments, f"out={out}"])
    assert contents(out) == whole
