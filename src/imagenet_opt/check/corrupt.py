"""Finds damaged samples by reading and decoding them completely, in several processes."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imagenet_opt.data.decode.decoder import Decoder
from imagenet_opt.data.decode.image_file import REFUSED, is_jpeg, is_whole_jpeg, open_image
from imagenet_opt.data.index.folder_index import FileIndex
from imagenet_opt.data.index.shard_index import ShardIndex
from imagenet_opt.data.loader import store_of
from imagenet_opt.data.options import LoaderOptions
from imagenet_opt.data.storage.read_ahead import ReadAhead
from imagenet_opt.errors import BadSample
from imagenet_opt.processes import pool

Rows = NDArray[np.int64]

CHUNK = 64
"""Samples that a process reads and decodes together."""
_READS_IN_FLIGHT = 32
"""Reads in flight of each process; chunks are not read ahead."""


@dataclass(frozen=True)
class ScanResult:
    """A sample. reason: why it cannot be used; empty if it can. mode: Pillow's, such as RGB, L or CMYK.

    cut_short: a truncated JPEG, whose missing part decoders fill in.
    """

    row: int
    name: str
    reason: str
    mode: str
    cut_short: bool


def examine(
    index: FileIndex | ShardIndex,
    rows: Rows,
    *,
    workers: int,
    loading: LoaderOptions,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[ScanResult]:
    """The samples that cannot be used, are truncated, or are not in RGB.

    workers: number of processes; 1 examines in this process. on_progress: called with (samples done, all samples).
    Raises StorageFailed, ReadTimeout.
    """
    chunks = [rows[i : i + CHUNK] for i in range(0, len(rows), CHUNK)]
    suspects: list[ScanResult] = []
    done = 0
    with _examiners(min(workers, len(chunks)), index, loading) as examined:
        for chunk, of_chunk in zip(chunks, examined(chunks), strict=True):
            suspects += of_chunk
            on_progress(done := done + len(chunk), len(rows))
    return suspects


@contextmanager
def _examiners(workers: int, *about: Any) -> Iterator[Callable[[list[Rows]], Iterator[list[ScanResult]]]]:
    if workers <= 1:
        examiner = _Examiner(*about)
        yield lambda chunks: map(examiner.examine, chunks)
        return
    with pool(workers, _begin, about) as processes:
        yield lambda chunks: processes.map(_examine, chunks)


_examiner: "_Examiner"
"""The examiner of this worker process; `_begin` sets this variable."""


def _begin(*about: Any) -> None:
    global _examiner
    _examiner = _Examiner(*about)


def _examine(rows: Rows) -> list[ScanResult]:
    return _examiner.examine(rows)


class _Examiner:
    def __init__(self, index: FileIndex | ShardIndex, loading: LoaderOptions) -> None:
        store, patience = store_of(index, loading), loading.read_timeout
        self.reader = ReadAhead(store, reads_in_flight=_READS_IN_FLIGHT, timeout_seconds=patience)
        self.decoder = Decoder(exif_rotation=False, max_crop_pixels=2**62, max_pixels=loading.max_pixels)

    def examine(self, rows: Rows) -> list[ScanResult]:
        samples = self.reader.read_unplanned(rows)
        names = map(self.reader.store.name, rows.tolist())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns about metadata
            examined = [_judge(self.decoder, *sample) for sample in zip(rows.tolist(), names, samples, strict=True)]
        return [sample for sample in examined if sample.reason or sample.cut_short or sample.mode != "RGB"]


def _judge(decoder: Decoder, row: int, name: str, sample: bytes | BadSample) -> ScanResult:
    if isinstance(sample, BadSample):
        return ScanResult(row, name, str(sample), "", False)
    cut_short = is_jpeg(sample) and not is_whole_jpeg(sample)
    try:
        opened = decoder.open(sample, name)
        decoder.crop(opened, (0, 0, opened.height, opened.width))
    except BadSample as error:
        return ScanResult(row, name, str(error), "", cut_short)
    try:
        mode = open_image(sample).mode
    except REFUSED:  # Pillow refuses the sample, but the decoder has decoded it
        mode = "RGB"
    return ScanResult(row, name, "", mode, cut_short)
