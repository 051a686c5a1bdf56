"""The recording of a run: samples at a fixed interval, and events, in a folder of .npz files."""

import logging
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from time import time
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from imagenet_opt.atomic_file import replacing
from imagenet_opt.errors import ConfigError

_log = logging.getLogger(__name__)

FOLDER = "timeline"
"""Name of the folder in the run folder."""
KINDS = ("other", "fetch", "step", "validation", "checkpoint", "logging", "epoch")
"""Kinds of events, by number; no event has the kind "other"."""
INTERVAL_SECONDS = 0.2
"""Time between samples."""
_CHUNK_SECONDS = 600.0
_MOST_BYTES = 2**28  # of a chunk, uncompressed

Column = NDArray[Any]
Table = dict[str, Column]


@dataclass(frozen=True)
class Timeline:
    """Tables: name of a column, with its unit at the end -> values, in order of time and of the same length.

    Times are `unix_seconds`, float64, as `time.time()`; NaN stands for values that could not be read. An empty table
    has no columns. An interruption of the run leaves a gap in `unix_seconds`.

    samples: every 200 ms; see docs/bottleneck.md for the columns.
    events: `begin_unix_seconds`, `end_unix_seconds`, `kind` (index of KINDS) and `step`, in order of their ends.
    """

    samples: Table
    events: Table

    def spans(self, kind: str) -> Column:
        """(N, 2): begin and end in unix seconds of all events of a kind, one of KINDS."""
        if not self.events:
            return np.zeros((0, 2))
        chosen = self.events["kind"] == KINDS.index(kind)
        return np.stack([self.events[f"{end}_unix_seconds"][chosen] for end in ("begin", "end")], axis=1)


class ChunkWriter:
    """Writes tables into files of ten minutes each; every `flush` rewrites the last file.

    Files are named by the unix milliseconds of their start and are replaced atomically, so that they can be read during
    the run, and a resumed run adds further files. Raises OSError if the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._columns: defaultdict[str, list[Column]] = defaultdict(list)
        self._begin()

    def add(self, table: str, columns: Mapping[str, ArrayLike]) -> None:
        """Rows for one of Timeline's tables. Their columns must be those of earlier calls."""
        for name, values in columns.items():
            kind: Any = np.float64 if name.endswith("unix_seconds") else np.uint8 if name == "kind" else np.float32
            self._columns[f"{table}/{name}"].append(np.asarray(values, kind))

    def flush(self) -> None:
        columns = {name: np.concatenate(parts) for name, parts in self._columns.items()}
        if not columns:
            return
        done = time() >= self._began + _CHUNK_SECONDS
        with replacing(self._file) as fresh, fresh.open("wb") as file:
            (np.savez_compressed if done else np.savez)(file, **columns)  # type: ignore[arg-type]
        self._columns.clear()
        if done:
            self._begin()
        else:
            self._columns.update({name: [column] for name, column in columns.items()})

    def _begin(self) -> None:
        self._began = time()
        self._file = self._folder / f"{int(self._began * 1000)}.npz"


def read_timeline(folder: Path) -> Timeline:
    """Read a run's `timeline` folder, also while the run writes it.

    A damaged file is skipped with a warning. Raises ConfigError if there is no readable file.
    """
    files = sorted(folder.glob("*.npz"), key=lambda file: (len(file.name), file.name))
    chunks = [chunk for file in files if (chunk := _read(file)) is not None]
    if not chunks:
        raise ConfigError(f"no timeline in {folder}; expected .npz files, which a run writes with callbacks.timeline")
    return Timeline(**{table.name: _joined(chunks, f"{table.name}/") for table in fields(Timeline)})


def _read(file: Path) -> Table | None:
    try:
        with file.open("rb") as opened, np.load(opened) as chunk:
            if sum(part.file_size for part in chunk.zip.infolist()) > _MOST_BYTES:
                raise ValueError("it holds more than ten minutes of samples can")
            return dict(chunk)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        _log.warning("%s is left out of the timeline: %s", file, error)
        return None


def _joined(chunks: Iterable[Table], prefix: str) -> Table:
    """One table from all chunks; NaN where a chunk lacks the column."""
    tables = [{n.removeprefix(prefix): c for n, c in chunk.items() if n.startswith(prefix)} for chunk in chunks]
    columns: dict[str, list[Column]] = {name: [] for table in tables for name in table}
    for table in filter(None, tables):
        missing = np.full(len(next(iter(table.values()))), np.nan, np.float32)
        for name, parts in columns.items():
            parts.append(table.get(name, missing))
    return {name: np.concatenate(parts) for name, parts in columns.items()}
