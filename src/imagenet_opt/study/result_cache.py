"""Stores results of measurements, one JSON line each, so that a stopped study resumes."""

import hashlib
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from imagenet_opt import machine
from imagenet_opt.errors import ConfigError, printable

FILE = "measured.jsonl"


class ResultCache:
    """Results in `folder`. Results of another version or machine are ignored. Raises ConfigError."""

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
        self._subject: str | None = None
        self._turns: list[str] = []  # the digest of the subject of each
        self._begins: Callable[[], None] = lambda: None
        content = self.file.read_bytes() if self.file.exists() else b""
        self._is_torn = bool(content) and not content.endswith(b"\n")
        for line in content.splitlines():
            with suppress(ValueError, KeyError, TypeError):  # torn by the end of a process
                row = json.loads(line)
                self.answers[row["key"]] = row["answer"]
                self._turns += [subject] if (subject := row.get("asked")) else []
        self._num_before = len(self._turns)

    def set_subject(self, subject: object) -> None:
        """Set what all following turns have in common, in plain values; turns with the same subject belong together."""
        self._subject = _digest({"asked": subject, **self.machine})

    def report_resumed(self) -> int:
        """Say on stderr whether results of earlier turns are used; return how many."""
        before = self._turns[: self._num_before]
        num = before.count(self._subject or "")
        if num:
            _say(f"resuming: {_turns(num)} kept from before")
        elif before:
            _say("earlier turns had other --seconds, another configuration or version: all turns are measured again")
        return num

    def only_new(self, report: Callable[[str], None]) -> Callable[[str], None]:
        """Return a version of `report` that is called only for new measurements, not for stored results."""

        def later(name: str) -> None:
            self._begins = partial(report, name)

        return later

    @contextmanager
    def report_if_stopped(self) -> Iterator[None]:
        """If Ctrl-C or SIGTERM ends the study, say how many results are kept."""
        try:
            yield
        except (KeyboardInterrupt, SystemExit):
            if num := self._turns.count(self._subject or ""):
                _say(f"stopped; {_turns(num)} kept in {self.file.parent}: run the same command again to resume")
            raise

    def take(self, job: Any, number: int, measure: Callable[[], Any], *, config: Any = None) -> Any:
        """Return the stored result of repetition `number` of `job` (a dataclass), or measure and store it.

        config: the composed configuration of the job in plain values; a result for another configuration is not used.
        """
        key = self._key(job, number, config)
        if key not in self.answers:
            self._begins()
            self.answers[key] = measure()
            row = {
                "key": key,
                "number": number,
                "job": asdict(job),
                "answer": self.answers[key],
                "asked": self._subject,
            }
            self._append(row)
            self._turns += [self._subject] if self._subject else []
        return self.answers[key]

    def has(self, job: Any, number: int, *, config: Any = None) -> bool:
        """Whether `take` would return a stored result."""
        return self._key(job, number, config) in self.answers

    def _key(self, job: Any, number: int, config: Any) -> str:
        facts = {"kind": type(job).__name__, "job": asdict(job), "number": number, "config": config}
        return _digest(facts | self.machine)

    def _append(self, row: dict[str, Any]) -> None:
        line = json.dumps(row, default=str).encode() + b"\n"
        try:
            with self.file.open("ab") as file:
                file.write(b"\n" + line if self._is_torn else line)
                file.flush()
                os.fsync(file.fileno())
            self._is_torn = False
        except OSError as error:
            raise ConfigError(f"--folder: cannot write {self.file}: {error.strerror}") from error


def _digest(facts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:24]


def _turns(num: int) -> str:
    return "1 turn is" if num == 1 else f"{num} turns are"


def _say(text: str) -> None:
    print(printable(text), file=sys.stderr, flush=True)
