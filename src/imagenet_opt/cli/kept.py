"""What was measured, kept line by line, so that a study that was broken off goes on."""

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from imagenet_opt import machine
from imagenet_opt.cli.bench_report import cpu_name
from imagenet_opt.errors import ConfigError

FILE = "measured.jsonl"


class Kept:
    """Answers to measurements in `folder`, those of other versions and machines apart. Raises ConfigError."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / FILE
        gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
        self.machine = {"versions": machine.versions(), "cpu": cpu_name(), "cpus": machine.usable_cpus(), "gpu": gpu}
        self.answers: dict[str, Any] = {}
        lines = self.file.read_bytes().splitlines() if self.file.exists() else []
        for line in lines:
            with suppress(ValueError, KeyError, TypeError):  # torn by the end of a process
                row = json.loads(line)
                self.answers[row["key"]] = row["answer"]

    def take(self, job: Any, number: int, measure: Callable[[], Any]) -> Any:
        """The answer for the `number`th time of `job` (a dataclass), measured now unless it is there."""
        facts = {"kind": type(job).__name__, "job": asdict(job), "number": number, **self.machine}
        key = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:24]
        if key not in self.answers:
            self.answers[key] = answer = measure()
            self._append({"key": key, "number": number, "job": asdict(job), "answer": answer})
        return self.answers[key]

    def _append(self, row: dict[str, Any]) -> None:
        try:
            with self.file.open("ab") as file:
                file.write(b"\n" if file.tell() and not self._ends_whole() else b"")
                file.write(json.dumps(row, default=str).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise ConfigError(f"--folder: cannot write {self.file}: {error.strerror}") from error

    def _ends_whole(self) -> bool:
        return self.file.read_bytes().endswith(b"\n")
