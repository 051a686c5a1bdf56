"""Stores results of measurements, one JSON line each, so that a stopped study resumes."""

import hashlib
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from imagenet_opt import machine
from imagenet_opt.errors import ConfigError, printable

FILE = "measured.jsonl"


class ResultCache:
    """Results in `folder`. Results of another version or machine are ignored.

    report: called with the label of each new measurement, not with those of stored results.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.report: Callable[[str], None] = lambda label: None
        versions = machine.versions()
        versions["imagenet-opt"] = versions["imagenet-opt"].partition(" ")[0]  # any commit
        self.machine = {
            "versions": versions,
            "host": platform.node(),
            "cpu": machine.cpu_name(),
            "cpus": machine.usable_cpus(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        }
        self._answers: dict[str, Any] = {}
        self._subject: str | None = None
        self._subjects: list[str] = []  # of each stored turn
        file = folder / FILE
        content = file.read_bytes() if file.exists() else b""
        self._is_torn = bool(content) and not content.endswith(b"\n")
        for line in content.splitlines():
            with suppress(ValueError, KeyError, TypeError):  # a killed process leaves an incomplete line
                row = json.loads(line)
                self._answers[row["key"]] = row["answer"]
                self._subjects += [subject] if (subject := row.get("asked")) else []
        self._num_before = len(self._subjects)

    def set_subject(self, subject: object) -> None:
        """Set what all following turns have in common, in plain values; turns with the same subject belong together."""
        self._subject = _digest({"asked": subject, **self.machine})

    def report_resumed(self) -> int:
        """Print on stderr whether results of earlier turns are reused, and return their number."""
        before = self._subjects[: self._num_before]
        if num := before.count(self._subject or ""):
            say(f"resuming: {_measurements(num)} kept from an earlier run")
        elif before:
            say("earlier measurements had other --seconds, another configuration or version: all are repeated")
        return num

    @contextmanager
    def report_if_stopped(self) -> Iterator[None]:
        """If Ctrl-C or SIGTERM ends the study, print how many results are kept."""
        try:
            yield
        except (KeyboardInterrupt, SystemExit):
            num = self._subjects.count(self._subject or "")
            kept = f"{_measurements(num)} kept in {self.folder}" if num else "no measurement was complete"
            say(f"stopped; {kept}: run the same command again to {'resume' if num else 'begin again'}")
            raise

    def take(self, job: Any, number: int, measure: Callable[[], Any], *, config: Any = None, label: str = "") -> Any:
        """Return the stored result of repetition `number` of `job` (a dataclass), or measure and store it.

        config: the composed configuration of the job in plain values; a result for another configuration is not used.
        label: for `report`; "" reports nothing. Raises ConfigError if the result cannot be stored.
        """
        key = self._key(job, number, config)
        if key not in self._answers:
            if label:
                self.report(label)
            answer = measure()
            self._answers[key] = answer
            self._append({"key": key, "number": number, "job": asdict(job), "answer": answer, "asked": self._subject})
            self._subjects += [self._subject] if self._subject else []
        return self._answers[key]

    def has(self, job: Any, number: int, *, config: Any = None) -> bool:
        """Whether there is a stored result; see `take`."""
        return self._key(job, number, config) in self._answers

    def _key(self, job: Any, number: int, config: Any) -> str:
        facts = {"kind": type(job).__name__, "job": asdict(job), "number": number, "config": config}
        return _digest(facts | self.machine)

    def _append(self, row: dict[str, Any]) -> None:
        line = json.dumps(row, default=str).encode() + b"\n"
        try:
            with (self.folder / FILE).open("ab") as file:
                file.write(b"\n" + line if self._is_torn else line)
                file.flush()
                os.fsync(file.fileno())
            self._is_torn = False
        except OSError as error:
            reason = f"cannot write {self.folder / FILE}: {error.strerror}"
            raise ConfigError(f"--folder: {reason}; free space or choose another --folder") from error


def _digest(facts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:24]


def _measurements(num: int) -> str:
    return "1 measurement is" if num == 1 else f"{num} measurements are"


def say(text: str) -> None:
    """Print a line on stderr."""
    print(printable(text), file=sys.stderr, flush=True)
