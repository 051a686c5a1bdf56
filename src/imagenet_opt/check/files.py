"""Verdicts on the bytes of samples: damaged ones, by decoding them completely, and duplicates."""

import warnings
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import numpy as np
from numpy.typing import NDArray

from imagenet_opt.check.result import CheckResult, Level
from imagenet_opt.data.decode.decoder import Decoder
from imagenet_opt.data.decode.nvimagecodec import is_jpeg, is_whole_jpeg
from imagenet_opt.data.index.split import Split
from imagenet_opt.data.loader import store_of
from imagenet_opt.data.options import LoaderOptions
from imagenet_opt.data.storage.read_ahead import ReadAhead
from imagenet_opt.errors import BadSample
from imagenet_opt.processes import pool

Rows = NDArray[np.int64]
Keys = NDArray[np.uint64]
"""Size in the upper half, CRC-32 of the content in the lower half. Two files of one size collide with probability
1/4e9."""
Finding = tuple[str, str]
"""A fault of a sample, by its name in _FAULTS, and the line about it."""
Match = tuple[int, int, int]
"""A validation sample; the split of another sample with the same bytes, 0 for train and 1 for val; its row there."""

_DECODED, _COMPARED = 64, 512
"""Samples that are read together, to decode or to compare them."""
_READS_TO_DECODE, _READS_TO_COMPARE = 32, 64
"""Reads in flight of each process; no samples are read ahead."""
_FAULTS = {
    "decoding": "cannot be used; training skips them up to data.max_bad_fraction",
    "truncated": "are truncated; decoders fill in the missing part. Copy these files again",
    "warnings": "decode with warnings, because of damage or their size",
}
_MANY = 0.01
"""Share of validation images with a duplicate from which the validation accuracy is misleading."""


def judge_decoding(
    split: str,
    index: Split,
    rows: Rows,
    *,
    workers: int,
    loading: LoaderOptions,
    on_progress: Callable[[int, int], None],
) -> Iterator[CheckResult]:
    """Verdicts on samples that are read and decoded completely.

    split: train or val. workers: number of processes; 1 decodes in this process. on_progress: called with (samples
    done, all samples). Raises StorageFailed, ReadTimeout.
    """
    chunks = [rows[i : i + _DECODED] for i in range(0, len(rows), _DECODED)]
    found, done = defaultdict[str, list[str]](list), 0
    with ExitStack() as stack:
        if workers > 1:
            processes = stack.enter_context(pool(min(workers, len(chunks)), _begin, (index, loading)))
            examined = processes.map(_examine, chunks)
        else:
            _begin(index, loading)
            examined = map(_examine, chunks)
        for chunk, of_chunk in zip(chunks, examined, strict=True):
            for kind, line in of_chunk:
                found[kind].append(line)
            on_progress(done := done + len(chunk), len(rows))
    if "decoding" not in found:
        yield CheckResult(f"decoding, {split}", "ok", f"all {len(rows):,} tested images can be decoded")
    for kind, text in _FAULTS.items():
        if lines := tuple(found[kind]):
            level: Level = "error" if kind == "decoding" else "warning"
            yield CheckResult(f"{kind}, {split}", level, f"{len(lines)} of {len(rows):,} {text}", lines)


_reader: ReadAhead
_decoder: Decoder
"""Those of this process; `_begin` sets both."""


def _begin(index: Split, loading: LoaderOptions) -> None:
    global _reader, _decoder
    store, patience = store_of(index, loading), loading.read_timeout
    _reader = ReadAhead(store, reads_in_flight=_READS_TO_DECODE, timeout_seconds=patience)
    _decoder = Decoder(exif_rotation=False, max_crop_pixels=2**62, max_pixels=loading.max_pixels)


def _examine(rows: Rows) -> list[Finding]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns about metadata
        return [found for row, sample in _reader.read_each(rows) for found in _judge(_reader.store.name(row), sample)]


def _judge(name: str, sample: bytes | BadSample) -> Iterator[Finding]:
    try:
        if isinstance(sample, BadSample):
            raise sample
        opened = _decoder.open(sample, name)
        _decoder.crop(opened, (0, 0, opened.height, opened.width))
    except BadSample as error:
        yield "decoding", str(error)
        return
    if is_jpeg(sample) and not is_whole_jpeg(sample):
        yield "truncated", name
    yield from (("warnings", note) for note in _decoder.take_notes())


def judge_duplicates(
    splits: Sequence[Split],
    sizes: Sequence[Rows],
    rows: Rows,
    loading: LoaderOptions,
    on_progress: Callable[[int, int], None],
) -> Iterator[CheckResult]:
    """Verdicts on the duplicates of the samples `rows` of val, among all samples of train and val.

    splits: train and val. sizes: sizes of all samples, per split; only samples that share their size with another one
    are read. Packs are not read, since their index has checksums. Samples that cannot be read have no duplicates.
    Raises StorageFailed, ReadTimeout.
    """
    wanted = np.unique(sizes[1][rows])
    values, counts = np.unique(np.concatenate(sizes), return_counts=True)
    shared = np.intersect1d(wanted[wanted > 0], values[counts > 1])
    candidates = [np.flatnonzero(np.isin(of_split, shared)) for of_split in sizes]
    total = sum(len(files) for index, files in zip(splits, candidates, strict=True) if not len(index.checksums))
    done = 0

    def advance(num: int) -> None:
        nonlocal done
        done += num
        on_progress(done, total)

    keys = [_keys(*split, loading, advance) for split in zip(splits, sizes, candidates, strict=True)]
    matches, labels = _matches(candidates, keys, rows), splits[1].labels
    effect = "train contains them, so the validation accuracy is too high"
    yield _verdict("val in train", splits, len(rows), [match for match in matches if match[1] == 0], effect)
    two_labels = [match for match in matches if match[1] and labels[match[0]] != labels[match[2]]]
    effect = "they have two labels, and one label is wrong"
    yield _verdict("twice in val", splits, len(rows), two_labels, effect)


def _verdict(check: str, splits: Sequence[Split], num: int, matches: Sequence[Match], effect: str) -> CheckResult:
    if not matches:
        return CheckResult(check, "ok", f"none of {num:,} validation images, byte for byte")
    images = len({row for row, _, _ in matches})
    text = f"{images} of {num:,} validation images, byte for byte: {effect}"
    lines = tuple(f"{splits[1].path(row)} = {splits[split].path(other)}" for row, split, other in matches)
    return CheckResult(check, "error" if images > _MANY * num else "warning", text, lines)


def _keys(index: Split, sizes: Rows, rows: Rows, loading: LoaderOptions, advance: Callable[[int], None]) -> Keys:
    """Keys of the samples `rows`; 0 for a sample that cannot be read."""
    if len(index.checksums):
        return (sizes[rows].astype(np.uint64) << np.uint64(32)) | index.checksums[rows].astype(np.uint64)
    patience = loading.read_timeout
    reader = ReadAhead(store_of(index, loading), reads_in_flight=_READS_TO_COMPARE, timeout_seconds=patience)
    keys = dict.fromkeys(rows.tolist(), 0)
    for first in range(0, len(rows), _COMPARED):
        chunk = rows[first : first + _COMPARED]
        keys |= {row: _key_of(sample) for row, sample in reader.read_each(chunk)}
        advance(len(chunk))
    return np.array(list(keys.values()), np.uint64)


def _key_of(sample: bytes | BadSample) -> int:
    return 0 if isinstance(sample, BadSample) else len(sample) << 32 | zlib.crc32(sample)


def _matches(candidates: Sequence[Rows], keys: Sequence[Keys], rows: Rows) -> list[Match]:
    compared = np.isin(candidates[1], rows) & (keys[1] != 0)
    matches = list[Match]()
    for split, (others, other_keys) in enumerate(zip(candidates, keys, strict=True)):
        order = np.argsort(other_keys, kind="stable")
        first = np.searchsorted(other_keys[order], keys[1][compared], "left")
        end = np.searchsorted(other_keys[order], keys[1][compared], "right")
        for row, low, high in zip(candidates[1][compared].tolist(), first.tolist(), end.tolist(), strict=True):
            twins = others[order[low:high]].tolist()
            matches += [(row, split, other) for other in twins if (split, other) != (1, row)]
    return matches
