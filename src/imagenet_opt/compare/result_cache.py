"""Stores results of measurements, one JSON line each, so that a stopped comparison resumes."""

import hashlib
import json
import os
import platform
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from imagenet_opt import machine
from imagenet_opt.display.progress import announced, say
from imagenet_opt.errors import ConfigError

FILE = "measured.jsonl"


class ResultCache:
    """Results in `folder` about one subject. Results about another subject, version or machine are ignored.

    subject: what all measurements have in common, in plain values. Results without a label are facts, and do not count
    as measurements.
    """

    def __init__(self, folder: Path, subject: object) -> None:
        self.folder = folder
        self._report: Callable[[str], None] = lambda label: None
        versions = machine.versions()
        versions["imagenet-opt"] = versions["imagenet-opt"].partition(" ")[0]  # any commit
        self.machine = {
            "versions": versions,
            "host": platform.node(),
            "cpu": machine.cpu_name(),
            "cpus": machine.usable_cpus(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        }
        self._subject = _digest({"subject": subject, **self.machine})
        self._answers: dict[str, Any] = {}
        self._num_measured, self._has_others = 0, False
        file = folder / FILE
        for line in file.read_bytes().splitlines() if file.exists() else ():
            with suppress(ValueError, KeyError, TypeError):  # a killed process leaves an incomplete line
                row = json.loads(line)
                if row["subject"] == self._subject:
                    self._answers[row["key"]] = row["answer"]
                    self._num_measured += bool(row["label"])
                else:
                    self._has_others = True

    def report_resumed(self) -> None:
        """Print on stderr whether earlier measurements are reused. Call it before the first measurement."""
        if num := self._num_measured:
            say(f"resuming: {_measurements(num)} kept from an earlier run")
        elif self._has_others:
            say("earlier measurements had other --seconds, another configuration or version: all are repeated")

    @contextmanager
    def measuring(self, total: int | None = None, *, budget_seconds: float = 0.0) -> Iterator[None]:
        """Show each new measurement on stderr, see `announced`. If Ctrl-C or SIGTERM ends the comparison, print how
        many measurements are kept."""
        try:
            with announced(total, budget_seconds=budget_seconds) as self._report:
                yield
        except (KeyboardInterrupt, SystemExit):
            num = self._num_measured
            kept = f"{_measurements(num)} kept in {self.folder}" if num else "no measurement was complete"
            say(f"stopped; {kept}: run the same command again to {'resume' if num else 'begin again'}")
            raise

    def take(self, key: object, measure: Callable[[], Any], label: str = "") -> Any:
        """Return the result that is stored for `key`, in plain values; if there is none, measure and store it.

        label: shown before the measurement; "" for a fact. Raises ConfigError if the result cannot be stored.
        """
        digest = _digest(key)
        if digest not in self._answers:
            if label:
                self._report(label)
            answer = measure()
            self._append({"subject": self._subject, "key": digest, "what": key, "label": label, "answer": answer})
            self._answers[digest] = answer
            self._num_measured += bool(label)
        return self._answers[digest]

    def has(self, key: object) -> bool:
        """Whether there is a stored result."""
        return _digest(key) in self._answers

    def num_missing(self, keys: Iterable[object]) -> int:
        """How many of these results are not stored; the folder may hold others, such as those of more rounds."""
        return sum(not self.has(key) for key in keys)

    def _append(self, row: dict[str, Any]) -> None:
        line = b"\n" + json.dumps(row, default=str).encode()  # ends a line that a killed process left incomplete
        try:
            with (self.folder / FILE).open("ab") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            reason = f"cannot write {self.folder / FILE}: {error.strerror}"
            raise ConfigError(f"--folder: {reason}; free space or choose another --folder") from error


def _digest(facts: object) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:24]


def _measurements(num: int) -> str:
    return "1 measurement is" if num == 1 else f"{num} measurements are"
