"""What was measured, kept line by line, so that a study that was broken off goes on."""

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
        self._asked: str | None = None
        self._turns: list[str] = []  # each as the digest of what was asked for
        self._begins: Callable[[], None] = lambda: None
        found = self.file.read_bytes() if self.file.exists() else b""
        self._is_torn = bool(found) and not found.endswith(b"\n")
        for line in found.splitlines():
            with suppress(ValueError, KeyError, TypeError):  # torn by the end of a process
                row = json.loads(line)
                self.answers[row["key"]] = row["answer"]
                self._turns += [asked] if (asked := row.get("asked")) else []
        self._num_before = len(self._turns)

    def ask(self, asked: object) -> None:
        """What is taken from now on are turns of this: what is the same for all of them, in plain values."""
        self._asked = _digest({"asked": asked, **self.machine})

    def tell_kept(self) -> int:
        """Say on stderr whether turns from before count for what is asked; their number."""
        before = self._turns[: self._num_before]
        num = before.count(self._asked or "")
        if num:
            _say(f"{_turns(num)} kept from before: going on")
        elif before:
            _say("what was measured before was of other --seconds, configuration or version: all is measured anew")
        return num

    def once_measured(self, announce: Callable[[str], None]) -> Callable[[str], None]:
        """`announce`, which is told only of what is not there already."""

        def later(what: str) -> None:
            self._begins = partial(announce, what)

        return later

    @contextmanager
    def told_if_stopped(self) -> Iterator[None]:
        """By Ctrl-C, or SIGTERM, which ends a process that measures with SystemExit."""
        try:
            yield
        except (KeyboardInterrupt, SystemExit):
            if num := self._turns.count(self._asked or ""):
                _say(f"stopped; {_turns(num)} kept in {self.file.parent}: the same command goes on")
            raise

    def take(self, job: Any, number: int, measure: Callable[[], Any], *, config: Any = None) -> Any:
        """The answer for the `number`th time of `job` (a dataclass), measured now unless it is there.

        config: what the job's overrides compose to now, in plain values; of another one it is measured anew.
        """
        key = self._key(job, number, config)
        if key not in self.answers:
            self._begins()
            self.answers[key] = measure()
            row = {"key": key, "number": number, "job": asdict(job), "answer": self.answers[key], "asked": self._asked}
            self._append(row)
            self._turns += [self._asked] if self._asked else []
        return self.answers[key]

    def has(self, job: Any, number: int, *, config: Any = None) -> bool:
        """Whether `take` would measure nothing."""
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
