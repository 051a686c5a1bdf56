"""A pack that was stopped from outside resumes."""

import os
import re
import resource
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from imagenet_opt.pack.pack import pack
from tests.pack.packs import SMALL, contents, jpeg, tree
from tests.processes import Forked


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of images of 64 x 64 pixels, in train/ and val/; the last one fills a shard of its own."""
    names = [f"{split}/{name}/{i:03d}.JPEG" for split in ("train", "val") for name in "ab" for i in range(8)]
    files = {name: jpeg(64, 64, seed=seed) for seed, name in enumerate(names)}
    return tree(tmp_path_factory.mktemp("images") / "data", files | {"val/b/007.JPEG": jpeg(400, 400, seed=99)})


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of an undisturbed pack."""
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    pack(data, out, SMALL)
    return contents(out)


def start(data: Path, log: Path, *arguments: str) -> Forked:
    """Pack in a process group of its own, as a terminal starts it. log: for its output."""
    words = [f"data.root={data}", "shard_mb=0.02", "workers=1", *arguments]
    command = [sys.executable, "-m", "imagenet_opt.cli.main", "pack", *words]
    with log.open("w") as file:
        return Forked(command, stdout=file, env=os.environ)


def worker_of(process: Forked) -> psutil.Process | None:
    """The child of the server from which the pack forks its worker."""
    with suppress(psutil.NoSuchProcess):
        for each in psutil.Process(process.pid).children(recursive=True):
            if each.ppid() != process.pid and each.status() != psutil.STATUS_ZOMBIE:
                return each
    return None


def stop_at(finished: Callable[[], bool], process: Forked) -> psutil.Process:
    """Let the one worker pack in slices of a hundredth of a second until `finished`; returns the stopped worker."""
    while True:
        assert process.poll() is None
        with suppress(psutil.NoSuchProcess):
            if (worker := worker_of(process)) is not None:
                worker.resume()
                time.sleep(0.01)
                worker.suspend()
                if finished():
                    return worker
        time.sleep(0.001)


def shards(files: dict[str, bytes]) -> set[str]:
    return {name for name in files if name.endswith(".tar")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stop", "status", "last_line"),
    [("kill -9", -9, ""), ("Ctrl-C", 130, "stopped"), ("kill of a worker", 2, "PackStopped: .*workers=1")],
)
def test_an_interrupted_pack_resumes_to_the_same_bytes(
    data: Path, whole: dict[str, bytes], tmp_path: Path, stop: str, status: int, last_line: str
) -> None:
    out, log = tmp_path / "out", tmp_path / "log"
    process = start(data, log, f"out={out}")
    worker = stop_at(lambda: any(out.glob("train/parts/*.json")), process)
    if stop == "kill -9":
        process.kill()
    elif stop == "Ctrl-C":
        os.killpg(process.pid, signal.SIGINT)
    if stop == "kill of a worker":
        worker.kill()
    else:
        with suppress(psutil.NoSuchProcess):  # the command may have ended it already
            worker.resume()
    assert process.wait(600) == status and "Traceback" not in log.read_text()
    assert re.match(last_line, log.read_text().splitlines()[-1] if last_line else "")
    assert psutil.wait_procs([worker], timeout=300)[1] == []  # no worker is left
    half = contents(out)
    finished = shards(half)
    assert finished and finished < shards(whole) and "val/index.json" not in half
    assert all(half[name] == whole[name] for name in finished)
    before = (out / "train/shard-00000.tar").stat().st_mtime_ns
    assert pack(data, out, SMALL).images_seen < 32
    assert contents(out) == whole
    assert (out / "train/shard-00000.tar").stat().st_mtime_ns == before, "a finished shard is not packed again"


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_the_pack_resumes(data: Path, whole: dict[str, bytes], tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: the same calls fail, with another word for it."""
    out, log = tmp_path / "out", tmp_path / "log"
    process = start(data, log, f"out={out}")
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (60_000, 60_000))  # before it starts its workers
    code = process.wait(600)
    assert code == 2 and re.search(rf"PackStopped: .*{out}/val/shard-0000\d\.tar: File too large", log.read_text())
    half = contents(out)
    assert len(shards(half)) > 2 and not any(name.endswith(".new") for name in half)
    assert all(half[name] == whole[name] for name in shards(half))
    pack(data, out, SMALL)
    assert contents(out) == whole
