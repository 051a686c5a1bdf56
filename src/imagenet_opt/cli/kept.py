"""What was measured, kept line by line and round by round, so that a study that was broken off goes on."""

import hashlib
import json
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from imagenet_opt import machine
from imagenet_opt.errors import ConfigError

FILE = "measured.jsonl"


class Kept:
    """Answers to measurements in `folder`, those of other versions and machines apart. Raises ConfigError."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / FILE
        versions = machine.versions()
        versions["imagenet-opt"] = versions["imagenet-opt"].partition(" ")[0]  # any commit
        gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
        self.machine = {
            "versions": versions,
            "host": platform.node(),
            "cpu": machine.cpu_name(),
            "cpus": machine.usable_cpus(),
            "gpu": gpu,
        }
        self.answers: dict[str, Any] = {}
        self._round: list[dict[str, Any]] | None = None
        found = self.file.read_bytes() if self.file.exists() else b""
        self._is_torn = bool(found) and not found.endswith(b"\n")
        for line in found.splitlines():
            with suppress(ValueError, KeyError, TypeError):  # torn by the end of a process
                row = json.loads(line)
                self.answers[row["key"]] = row["answer"]

    def take(self, job: Any, number: int, measure: Callable[[], Any], *, config: Any = None) -> Any:
        """The answer for the `number`th time of `job` (a dataclass), measured now unless it is there.

        config: what the job's overrides compose to now, in plain values; of another one it is measured anew.
        """
        facts = {"kind": type(job).__name__, "job": asdict(job), "number": number, "config": config, **self.machine}
        key = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:24]
        if key not in self.answers:
            self.answers[key] = answer = measure()
            row = {"key": key, "number": number, "job": asdict(job), "answer": answer}
            if self._round is None:
                self._append([row])
            else:
                self._round.append(row)
        return self.answers[key]

    @contextmanager
    def whole_round(self) -> Iterator[None]:
        """What is taken within is written at its end, or not at all: after an interruption a round is measured anew.

        What is compared within a round has seen the machine in one mood, which two sessions have not.
        """
        self._round = []
        try:
            yield
            if self._round:
                self._append(self._round)
        finally:
            self._round = None

    def _append(self, rows: Sequence[dict[str, Any]]) -> None:
        lines = b"".join(json.dumps(row, default=str).encode() + b"\n" for row in rows)
        try:
            with self.file.open("ab") as file:
                file.write(b"\n" + lines if self._is_torn else lines)
                file.flush()
                os.fsync(file.fileno())
            self._is_torn = False
        except OSError as error:
            raise ConfigError(f"--folder: cannot write {self.file}: {error.strerror}") from error
