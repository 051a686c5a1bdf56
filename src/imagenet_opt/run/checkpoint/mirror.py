"""A copy of a run's newest checkpoints in an object storage, so that the run survives the loss of its machine.

    URL/checkpoints/step_00012000.ckpt   the newest `keep`, named as in the run folder
    URL/best.ckpt, metrics.csv, ...      files of the run folder, uploaded before the checkpoint

An object is complete when it is in the list of the storage, and no other object says which checkpoint is the newest.

The functions run in a process of their own (`call`): a process that has opened an object storage cannot fork loader
workers that read from one, and training forks workers at any time. So this module imports no torch, which makes the
process start in about a second, and arguments and results are values of JSON.
"""

import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from imagenet_opt import errors
from imagenet_opt.atomic_file import replacing
from imagenet_opt.display.progress import progress
from imagenet_opt.errors import (
    CheckpointError,
    CheckpointNotFound,
    ConfigError,
    ImagenetOptError,
    RunFolderError,
    StorageFailed,
)
from imagenet_opt.object_storage import FoundObject, ObjectStorage, is_url, is_web
from imagenet_opt.processes import end_with_parent
from imagenet_opt.run.checkpoint.names import BEST, FOLDER, step_of

KEY = "callbacks.checkpoint.mirror"
_PROBE = "write_probe"
_PIECE_BYTES = 16 * 2**20
_MODULE = "imagenet_opt.run.checkpoint.mirror"


def check_url(url: object) -> None:
    """Raise ConfigError unless checkpoints can be uploaded to `url`."""
    if not is_url(url) or is_web(str(url)):
        raise ConfigError(
            f"{KEY}={url} is no bucket; expected s3://BUCKET/FOLDER or gs://BUCKET/FOLDER. For a mirror in another "
            "folder, set hydra.run.dir to that folder"
        )


def probe(storage: ObjectStorage) -> None:
    """Write and, if possible, remove a small object. Raises StorageFailed or ConfigError if the mirror cannot be
    written."""
    storage.write(_PROBE, b"written by imagenet-opt when a run starts\n")
    _remove(storage, [_PROBE])


def steps(storage: ObjectStorage) -> list[FoundObject]:
    """The checkpoints with a step in their name, the latest step first."""
    found = [each for portion in storage.objects(FOLDER) for each in portion if step_of(each.path) >= 0]
    return sorted(found, key=lambda each: step_of(each.path), reverse=True)


def upload(
    storage: ObjectStorage,
    *,
    name: str,
    checkpoint: str,
    best: str | None,
    others: list[str],
    keep: int,
    replaced: list[list[Any]],
) -> str | None:
    """Upload `others`, best.ckpt and then a checkpoint; remove `replaced`, and steps beyond the newest `keep`.

    name: of the checkpoint in the mirror. checkpoint, best, others: local files; `others` keep their names. replaced:
    the checkpoints, as `FoundObject`s, that were there when the run began before them. Returns why one could not be
    removed. Sizes are compared after the upload; a checkpoint is verified when it is downloaded.
    Raises CheckpointError, and writes nothing, if another run has written a later step.
    """
    there = steps(storage)
    later = [found for found in there if step_of(found.path) > step_of(name)]
    if foreign := [found.path for found in later if list(found) not in replaced]:
        raise CheckpointError(
            f"another run has written {foreign[0]}, which is later and stays; end one of the two runs, or choose "
            f"another {KEY}"
        )
    put(storage, files=others)
    if best is not None:
        storage.upload(BEST, Path(best))
    if best is not None and os.path.samefile(best, checkpoint):
        storage.copy(BEST, name)
    else:
        storage.upload(name, Path(checkpoint))
    gone = [found for found in there if list(found) in replaced and found.path != name]
    earlier = [found for found in there if step_of(found.path) < step_of(name) and found not in gone]
    return _remove(storage, [found.path for found in (*gone, *earlier[keep - 1 :])])


def put(storage: ObjectStorage, *, files: list[str]) -> None:
    """Upload small files under their names."""
    for file in map(Path, files):
        storage.write(file.name, file.read_bytes())


def download(
    storage: ObjectStorage,
    *,
    name: str,
    target: str,
    others: Sequence[tuple[str, str]] = (),
    folder_key: str = "hydra.run.dir",
) -> None:
    """Download a checkpoint, written beside its target and renamed. others: names and targets of files that are
    downloaded before, if the mirror has them. folder_key: what sets the folder of the targets.

    Raises CheckpointNotFound; RunFolderError if a target cannot be written.
    """
    for source, path in (*others, (name, target)):
        if (found := storage.head(source)) is not None:
            _download(storage, found, Path(path), folder_key)
        elif source == name:
            raise CheckpointNotFound(f"no checkpoint at {storage.name(name)} ({storage.key}); expected a .ckpt object")


def _remove(storage: ObjectStorage, paths: list[str]) -> str | None:
    """Remove objects, and return why one of them could not be removed."""
    for path in paths:
        try:
            storage.delete(path)
        except FileNotFoundError:  # another run has removed it
            continue
        except (OSError, StorageFailed) as error:
            return f"{path}: {error}"
    return None


def _download(storage: ObjectStorage, found: FoundObject, target: Path, folder_key: str) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target, sync=True) as fresh, fresh.open("wb") as file:
            for piece in _pieces(storage, found):
                file.write(piece)
    except OSError as error:
        raise RunFolderError(
            f"cannot write {target} ({error.strerror}); make room there, or choose another folder with {folder_key}"
        ) from error


def _pieces(storage: ObjectStorage, found: FoundObject) -> Iterator[bytes]:
    with progress(f"downloading {storage.name(found.path)}", "MB") as show:
        for start in range(0, found.size, _PIECE_BYTES):
            with storage.explained():
                size = min(_PIECE_BYTES, found.size - start)
                piece = storage.read(found.path, start=start, size=size, etag=found.etag)
            yield piece
            show((start + size) // 10**6, found.size // 10**6)


_TASKS = {task.__name__: task for task in (probe, steps, upload, put, download)}


def call(task: str, url: str, key: str = KEY, **arguments: Any) -> Any:
    """The result of the function `task` above for the storage at `url`. key: the config key that holds `url`.

    Raises the ImagenetOptError of the function, and StorageFailed for other ends of the process.
    """
    job: dict[str, Any] = {"task": task, "url": url, "key": key, "parent": os.getpid(), "arguments": arguments}
    command = [sys.executable, "-P", "-m", _MODULE, json.dumps(job)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with tempfile.TemporaryFile() as output:
        status = _run(command, environment, output.fileno())
        output.seek(0)
        lines = output.read().splitlines()
    if status or not lines:
        raise StorageFailed(f"{url} ({key}): the process for the {task} ended with status {status}")
    answer = json.loads(lines[-1])
    if "error" in answer:
        raise getattr(errors, answer["error"])(answer["message"])
    return answer["result"]


def _run(command: list[str], environment: dict[str, str], stdout: int) -> int:
    """Run `command` without stdin, and return its exit status.

    No pipe is open meanwhile, not even the one of subprocess.Popen that tells when the program has started: a loader
    worker that is forked at this moment would keep the other end open, and this thread would wait for its end.
    """
    files = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), (os.POSIX_SPAWN_DUP2, stdout, 1)]
    process = os.posix_spawn(command[0], command, environment, file_actions=files)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def main() -> None:
    """Do the job of argv[1], and print the answer as the last line."""
    os.setsid()  # otherwise Ctrl-C ends an upload
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)  # SLURM signals every process of a job; an upload should be completed
    job = json.loads(sys.argv[1])
    end_with_parent(job["parent"])  # so that a resumed run is the only one that uploads
    storage = ObjectStorage(job["url"], job["key"])
    answer: dict[str, Any]
    try:
        with storage.explained():
            answer = {"result": _TASKS[job["task"]](storage, **job["arguments"])}
    except ImagenetOptError as error:
        answer = {"error": type(error).__name__, "message": str(error)}
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
