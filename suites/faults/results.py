"""What a run leaves in its folder, and whether two runs left the same."""

import csv
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

TIMED = ("throughput/", "loader/", "gpu/", "host/", "checkpoint/", "timeline/", "bottleneck/")
"""Columns of metrics.csv that depend on the clock."""


def reached(run_folder: Path) -> int:
    """Steps done, as the last whole row of metrics.csv has it."""
    try:
        with (run_folder / "metrics.csv").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
            whole = file.read().split(b"\n")[1:-1]
    except OSError:
        return 0
    return int(whole[-1].split(b",")[0]) + 1 if whole and whole[-1][:1].isdigit() else 0


def rows(run_folder: Path) -> list[dict[str, str]]:
    """metrics.csv without what depends on the clock, and without empty cells."""
    with (run_folder / "metrics.csv").open(newline="") as file:
        return [{k: v for k, v in row.items() if v and not k.startswith(TIMED)} for row in csv.DictReader(file)]


def step_files(run_folder: Path) -> list[Path]:
    """Checkpoints of single steps, oldest first."""
    return sorted((run_folder / "checkpoints").glob("step_*.ckpt"))


def opened(path: Path) -> Any:
    """A checkpoint without the command that began its run."""
    saved = torch.load(path, map_location="cpu", weights_only=True)
    return {name: value for name, value in saved.items() if name not in ("begun", "starts")}


def differences(first: Any, second: Any, place: str = "") -> Iterator[str]:
    """Places where two nested values are not equal to the last bit."""
    if type(first) is not type(second):
        yield place
    elif isinstance(first, dict):
        yield from (f"{place}/{key}" for key in first.keys() ^ second.keys())
        for key in first.keys() & second.keys():
            yield from differences(first[key], second[key], f"{place}/{key}")
    elif isinstance(first, list | tuple) and len(first) == len(second):
        for i, (one, other) in enumerate(zip(first, second, strict=True)):
            yield from differences(one, other, f"{place}/{i}")
    elif isinstance(first, torch.Tensor):
        if first.dtype != second.dtype or not torch.equal(first, second):
            yield place
    elif first != second:
        yield place
