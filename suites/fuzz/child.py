"""A process that reads damaged files one after the other, so that a crash or a hang of a decoder ends only itself.

`python -m suites.fuzz.child FOLDER GIB`: for each line {"reader", "file", "size"} and so many bytes on stdin, a line
{"kind", "what"} on stdout. kind: value, error (an ImagenetOptError), or undocumented.
"""

import json
import os
import resource
import shutil
import sys
import traceback
import warnings
from pathlib import Path

import psutil

from imagenet_opt.errors import ImagenetOptError
from suites.fuzz.readers import READERS


def main() -> None:
    folder, gib = Path(sys.argv[1]), float(sys.argv[2])
    answers = os.fdopen(os.dup(1), "w")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)  # tables
    os.dup2(nowhere, 2)  # what decoders think of their input
    for name in filter(READERS.get, os.listdir(folder)):
        _try(folder, name, None, b"")  # what is loaded on first use is no part of an input's memory
    most = psutil.Process().memory_info().vms + int(gib * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    print(json.dumps({"kind": "ready", "what": ""}), file=answers, flush=True)
    while line := sys.stdin.buffer.readline():
        request = json.loads(line)
        content = sys.stdin.buffer.read(request["size"])
        kind, what = _try(folder, request["reader"], request["file"], content)
        print(json.dumps({"kind": kind, "what": what}), file=answers, flush=True)


def _try(folder: Path, name: str, file: str | None, content: bytes) -> tuple[str, str]:
    work = folder / name / "work"
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(folder / name / "good", work)  # with the times of folders, by which a cache is known
    if file is not None:
        (work / file).write_bytes(content)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            READERS[name].read(work)
    except ImagenetOptError as error:
        return "error", type(error).__name__
    except Exception as error:
        places = [frame for frame in traceback.extract_tb(error.__traceback__) if "imagenet_opt/" in frame.filename]
        where = [f" at {Path(frame.filename).name}:{frame.lineno}" for frame in places[-1:]] or [f": {error}"]
        return "undocumented", type(error).__name__ + where[0]
    return "value", ""


if __name__ == "__main__":
    main()
