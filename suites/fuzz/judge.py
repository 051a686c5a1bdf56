"""Asks a child about one damaged file after the other; a crash or no answer in time is a verdict too."""

import json
import os
import select
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from suites.fuzz.readers import READERS

REPOSITORY = Path(__file__).parents[2]
MEMORY_GIB = 4.0
"""What one input may take: of JPEGs, 2**29 pixels are read with up to 6 bytes each (data/decode/decoder.py)."""
_LIMIT_SECONDS = 60.0
"""Of one input."""
START_SECONDS = 300.0


class Judge:
    """counts: reader -> verdicts by kind. undocumented: (reader, what) -> file and content of one that gave it."""

    def __init__(self, folder: Path, readers: Iterable[str]) -> None:
        self.folder = folder
        self.counts: dict[str, Counter[str]] = defaultdict(Counter)
        self.undocumented: dict[tuple[str, str], tuple[str, bytes]] = {}
        for name in readers:
            (folder / name / "work").mkdir(parents=True)
            READERS[name].make(folder / name / "work")
            shutil.copytree(folder / name / "work", folder / name / "good")
        self._start()

    def good(self, reader: str, file: str) -> bytes:
        return (self.folder / reader / "good" / file).read_bytes()

    def try_input(self, reader: str, file: str, content: bytes) -> None:
        header = json.dumps({"reader": reader, "file": file, "size": len(content)}).encode() + b"\n"
        try:
            self._requests.write(header + content)
            self._requests.flush()
            kind, what = self._answer(_LIMIT_SECONDS)
        except (BrokenPipeError, EOFError, TimeoutError) as error:
            hung = isinstance(error, TimeoutError)
            if not hung:
                self._child.wait()  # by what it ended
            self.close()
            kind, what = "undocumented", "hang" if hung else f"crash: ended with {self._child.returncode}"
            self._start()
        self.counts[reader][kind] += 1
        if kind == "undocumented":
            self.undocumented.setdefault((reader, what), (file, content))

    def close(self) -> None:
        self._child.kill()
        self._child.wait()
        for pipe in (self._requests, self._answers):
            with suppress(BrokenPipeError):
                pipe.close()

    def _start(self) -> None:
        command = [sys.executable, "-m", "suites.fuzz.child", str(self.folder), str(MEMORY_GIB)]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        pipe = subprocess.PIPE
        self._child = subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=REPOSITORY, env=environment)
        assert self._child.stdin is not None and self._child.stdout is not None
        self._requests: IO[bytes] = self._child.stdin
        self._answers: IO[bytes] = self._child.stdout
        self._answer(START_SECONDS)

    def _answer(self, seconds: float) -> tuple[str, str]:
        if not select.select([self._answers], [], [], seconds)[0]:
            raise TimeoutError
        line = self._answers.readline()
        if not line.endswith(b"\n"):
            raise EOFError
        answer: dict[str, Any] = json.loads(line)
        return answer["kind"], answer["what"]
