"""Calls a function of mirror.py in a process of its own.

A process that has opened an object storage cannot fork loader workers that read from one, and training forks workers at
any time. The process imports no torch and starts in about a second.
"""

import json
import os
import signal
import sys
import tempfile
from typing import Any

from imagenet_opt import errors
from imagenet_opt.errors import ImagenetOptError, StorageFailed
from imagenet_opt.object_storage import ObjectStorage
from imagenet_opt.processes import end_with_parent
from imagenet_opt.run.checkpoint import mirror

_TASKS = {task.__name__: task for task in (mirror.probe, mirror.steps, mirror.upload, mirror.head, mirror.download)}


def call(task: str, url: str, key: str = mirror.KEY, **arguments: Any) -> Any:
    """The result of the function `task` of mirror.py for the storage at `url`. key: the config key that holds `url`.

    Raises the ImagenetOptError of the function, and StorageFailed for other ends of the process.
    """
    job: dict[str, Any] = {"task": task, "url": url, "key": key, "parent": os.getpid(), "arguments": arguments}
    command = [sys.executable, "-P", "-m", __name__, json.dumps(job)]
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
