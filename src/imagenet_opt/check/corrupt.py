"""Finds damaged samples by reading and decoding them completely, in several processes."""

import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from imagenet_opt.data.decode.decoder import Decoder
from imagenet_opt.data.decode.image_file import is_jpeg, is_whole_jpeg
from imagenet_opt.data.index.folder_index import Split
from imagenet_opt.data.loader import store_of
from imagenet_opt.data.options import LoaderOptions
from imagenet_opt.data.storage.read_ahead import ReadAhead
from imagenet_opt.errors import BadSample
from imagenet_opt.processes import pool

Rows = NDArray[np.int64]

_CHUNK = 64
"""Samples that a process reads and decodes together."""
_READS_IN_FLIGHT = 32
"""Reads in flight of each process; chunks are not read ahead."""


@dataclass(frozen=True)
class Damaged:
    """reason: why the sample cannot be used; "" for a truncated JPEG, whose missing part decoders fill in."""

    name: str
    reason: str


def examine(
    index: Split, rows: Rows, *, workers: int, loading: LoaderOptions, on_progress: Callable[[int, int], None]
) -> list[Damaged]:
    """The samples that cannot be used or are truncated.

    workers: number of processes; 1 examines in this process. on_progress: called with (samples done, all samples).
    Raises StorageFailed, ReadTimeout.
    """
    chunks = [rows[i : i + _CHUNK] for i in range(0, len(rows), _CHUNK)]
    damaged, done = list[Damaged](), 0
    with ExitStack() as stack:
        if workers > 1:
            processes = stack.enter_context(pool(min(workers, len(chunks)), _begin, (index, loading)))
            examined = processes.map(_examine, chunks)
        else:
            _begin(index, loading)
            examined = map(_examine, chunks)
        for chunk, of_chunk in zip(chunks, examined, strict=True):
            damaged += of_chunk
            on_progress(done := done + len(chunk), len(rows))
    return damaged


_reader: ReadAhead
_decoder: Decoder
"""Those of this process; `_begin` sets both."""


def _begin(index: Split, loading: LoaderOptions) -> None:
    global _reader, _decoder
    store, patience = store_of(index, loading), loading.read_timeout
    _reader = ReadAhead(store, reads_in_flight=_READS_IN_FLIGHT, timeout_seconds=patience)
    _decoder = Decoder(exif_rotation=False, max_crop_pixels=2**62, max_pixels=loading.max_pixels)


def _examine(rows: Rows) -> list[Damaged]:
    names, samples = map(_reader.store.name, rows.tolist()), _reader.read_unplanned(rows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns about metadata
        found = [_judge(name, sample) for name, sample in zip(names, samples, strict=True)]
    return [damaged for damaged in found if damaged is not None]


def _judge(name: str, sample: bytes | BadSample) -> Damaged | None:
    try:
        if isinstance(sample, BadSample):
            raise sample
        opened = _decoder.open(sample, name)
        _decoder.crop(opened, (0, 0, opened.height, opened.width))
    except BadSample as error:
        return Damaged(name, str(error))
    return Damaged(name, "") if is_jpeg(sample) and not is_whole_jpeg(sample) else None
