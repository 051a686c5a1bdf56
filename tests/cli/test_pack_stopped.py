"""A pack that was stopped from outside resumes."""

import os
import re
import resource
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from imagenet_opt.cli.pack import main
from imagenet_opt.pack.pack_lock import CLAIM
from tests.cli.packs import finish, images, start, words
from tests.object_server import objects
from tests.pack.packs import contents, jpeg


def workers_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The children of the server from which the pack forks its workers."""
    try:
        children = psutil.Process(process.pid).children(recursive=True)
        return [each for each in children if each.ppid() != process.pid and each.status() != psutil.STATUS_ZOMBIE]
    except psutil.NoSuchProcess:
        return []


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return images(tmp_path / "data", per_class=8)


def stop_at(finished: Callable[[], bool], process: subprocess.Popen[str]) -> psutil.Process:
    """Let the one worker pack in slices of a hundredth of a second until `finished`; returns the stopped worker."""
    while True:
        assert process.poll() is None, finish(process)
        for worker in workers_of(process):
            with suppress(psutil.NoSuchProcess):
                worker.resume()
                time.sleep(0.01)
                worker.suspend()
                if finished():
                    return worker
        time.sleep(0.001)


@pytest.fixture
def whole(data: Path, tmp_path: Path) -> dict[str, bytes]:
    """The files of an undisturbed pack."""
    code, printed, _ = finish(start(*words(data, tmp_path / "undisturbed")))
    assert code == 0 and "32 images, 0 rejected" in printed
    return contents(tmp_path / "undisturbed")


def recorded(files: dict[str, bytes]) -> set[str]:
    """The records of finished shards."""
    return {name for name in files if "/parts/" in name}


def shards(files: dict[str, bytes]) -> set[str]:
    return {name for name in files if name.endswith(".tar")}


@pytest.mark.slow
@pytest.mark.parametrize("split", ["train", "val"])
def test_after_kill_9_a_pack_resumes_to_the_same_bytes(
    data: Path, whole: dict[str, bytes], split: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    process = start(*words(data, out))
    worker = stop_at(lambda: any(out.glob(f"{split}/parts/*.json")), process)
    process.kill()
    worker.resume()
    finish(process)
    assert psutil.wait_procs([worker], timeout=20)[1] == []  # no worker is left

    half = contents(out)
    finished = shards(half)
    assert finished and finished < shards(whole)
    assert all(half[name] == whole[name] for name in finished) and "val/index.json" not in half
    untouched = out / min(finished)
    before = untouched.stat().st_mtime_ns
    os.unlink(out / max(recorded(half)))  # as if killed a moment earlier

    code, printed, _ = finish(start(*words(data, out)))
    assert code == 0 and printed.startswith(f"packed {out}: 32 images, 0 rejected, ")
    assert contents(out) == whole
    assert len(recorded(half)) == 1 or untouched.stat().st_mtime_ns == before


@pytest.mark.slow
def test_after_kill_9_a_pack_into_a_bucket_resumes(
    data: Path, whole: dict[str, bytes], bucket: str, tmp_path: Path
) -> None:
    out = f"{bucket}/packed"
    arguments = [*words(data, tmp_path), f"out={out}", f"data.cache_dir={tmp_path}/cache"]
    process = start(*arguments)
    worker = stop_at(lambda: bool(recorded(objects(out))), process)
    process.kill()
    worker.resume()
    finish(process)
    assert psutil.wait_procs([worker], timeout=20)[1] == []
    half = objects(out)
    finished = shards(half)
    assert finished and finished < shards(whole) and "val/index.json" not in half
    assert all(half[name] == whole[name] for name in finished)

    code, printed, errors = finish(start(*arguments))
    assert code == 0 and printed.startswith(f"packed {out}: 32 images, 0 rejected, "), errors
    assert f"packing: {32 - 4 * len(recorded(half))} of" in errors  # no finished shard is packed again
    assert objects(out) == {name: content for name, content in whole.items() if name != CLAIM}
    code, printed, errors = finish(start(f"out={out}", "--verify"))
    assert (code, printed) == (0, f"{out} is intact: all 32 images match their checksums\n"), errors
    assert "verifying: 32 of 32 images, " in errors


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stop", "status", "last_line"),
    [
        ("Ctrl-C", 130, "stopped; what is packed is kept; run the same command again to resume"),
        ("kill of a worker", 2, "PackStopped: a packing process was killed, perhaps because memory "
         "ran out; run the same command again: it resumes where it stopped. If another process is killed, "
         "lower workers=1"),
    ],
)  # fmt: skip
def test_an_interrupted_pack_ends_with_one_line_and_resumes(
    data: Path, whole: dict[str, bytes], tmp_path: Path, stop: str, status: int, last_line: str
) -> None:
    out = tmp_path / "out"
    process = start(*words(data, out))
    worker = stop_at(lambda: any(out.glob("train/parts/*.json")), process)
    if stop == "Ctrl-C":
        os.killpg(process.pid, signal.SIGINT)
        worker.resume()
    else:
        worker.kill()
    code, output, errors = finish(process)
    assert (code, output) == (status, "") and "Traceback" not in errors
    assert errors.splitlines()[-1] == last_line
    assert not list(out.rglob(".*.new")) and not list(out.glob("val/index.json"))
    assert finish(start(*words(data, out)))[0] == 0
    assert contents(out) == whole


@pytest.mark.slow
def test_a_source_that_disappears_stops_the_pack(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start(*words(data, out))
    worker = stop_at(lambda: any(out.glob("train/parts/*.json")), process)
    data.rename(tmp_path / "unmounted")
    worker.resume()
    code, printed, err = finish(process)
    assert (code, printed) == (2, "")
    assert re.search(
        rf"PackStopped: {data}/\w+ has disappeared \(No such file or directory\); reconnect the storage", err
    )


def test_a_full_disk_is_one_line_and_the_pack_resumes(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: the same calls fail, with another word for it."""
    root = images(tmp_path / "data", per_class=4)
    (root / "val/a/002.JPEG").write_bytes(jpeg(400, 400, seed=99))
    arguments = [f"data.root={root}", "shard_mb=0.02", "workers=1"]
    main([*arguments, f"out={tmp_path}/undisturbed"])
    whole, out = contents(tmp_path / "undisturbed"), tmp_path / "out"
    process = start(*arguments, f"out={out}")
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (60_000, 60_000))  # before it starts its workers
    code, _, err = finish(process)
    assert code == 2 and re.search(
        rf"PackStopped: cannot write {out}/val/shard-0000\d\.tar: File too large; .* resumes", err
    )
    half = contents(out)
    assert len(shards(half)) > 2 and not any(name.endswith(".new") for name in half)
    assert all(half[name] == whole[name] for name in shards(half))
    main([*arguments, f"out={out}"])
    assert contents(out) == whole
