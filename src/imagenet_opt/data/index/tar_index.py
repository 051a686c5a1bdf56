"""Splits of tars: those of WebDataset, with labels beside the images, a tar for each class, or the tars of ILSVRC2012.

ILSVRC2012_img_train.tar has a tar for each class, whose images are records of the outer tar. ILSVRC2012_img_val.tar has
images without labels, which a list has.
"""

import os
import re
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from imagenet_opt.data.index.flat_folder import listed_classes
from imagenet_opt.data.index.index_cache import Marks, marks_of, open_kept, scan_each
from imagenet_opt.data.index.layout import Root, is_image, list_of_classes, unreadable
from imagenet_opt.data.index.shard_index import is_pack
from imagenet_opt.data.index.split import Split, joined
from imagenet_opt.data.index.tar_members import FileBytes, Read, TarError, has_end_mark
from imagenet_opt.data.index.tar_samples import (
    BELOW_ZERO,
    Open,
    TarSamples,
    files_of_tar,
    inner_tars,
    open_inner,
    read_images,
    read_samples,
    samples_of_outer,
)
from imagenet_opt.data.index.webdataset import (
    CLASS_NAMES,
    INFO,
    NUM_TARS,
    class_names,
    compare,
    is_named,
    number_labels,
    words_of,
)
from imagenet_opt.data.storage.retry import OPENING_SECONDS, retry_transient
from imagenet_opt.errors import DataError
from imagenet_opt.object_storage import is_url
from imagenet_opt.regular_file import MOST_BYTES, open_regular

_THREADS = 16
_STILL_WRITTEN = 60.0
"""Seconds since its last change after which a tar without an end mark is taken for finished."""
_LOOKED_AT = 64
"""Members of a tar among which labels are looked for."""
_MOST_KINDS = 100
"""Most kinds of members that are counted, since endings may be anything."""
_MOST_BESIDE = 2**24
"""Most bytes of a file with names of classes or numbers of samples."""
_SHARD = re.compile(r"(.*?)(\d+)(-of-\d+)?")
_WORDNET = re.compile(r"n\d+")
_NO_DATA = ("__MACOSX", "lost+found")
T = TypeVar("T")


@dataclass(frozen=True)
class Tars:
    """The tars of a split. place: their folder or URL. names: sorted. beside: files that may tell about the tars ->
    content. list_path: of the classes of validation images, for tars without labels."""

    place: str
    split: str
    names: tuple[str, ...]
    beside: Mapping[str, bytes]
    list_path: Path | None = None


def find_tars(root: Root, split: str) -> Tars | None:
    """The tars in `root`/`split`, in `root`/validation for val, or those in `root` whose names have the word; None
    without any, and for a pack. Raises DataError for folders that cannot be listed, and see `tars_among`."""
    for name in (split, *sorted(words_of(split) - {split})):
        folders, files = root.entries(name)
        read = partial(_read_beside, root, name)
        if names := () if is_pack(files, read) else tars_among(files, folders, place=root.at(name)):
            return _tars(root, name, split, names)
        if name == split and (folders or files):
            return None
    names = tuple(name for name in tars_among(root.entries("")[1]) if is_named(name, split))
    return _tars(root, "", split, names) if names else None


def _read_beside(root: Root, below: str, file: str) -> bytes:
    return root.read(os.path.join(below, file), MOST_BYTES)


def tars_among(files: Iterable[str], folders: Iterable[str] = (), *, place: Path | str = "") -> tuple[str, ...]:
    """Sorted names of the tars among files. folders: beside them. Raises DataError for class folders or
    images beside tars in `place`."""
    seen = [name for name in files if not name.startswith(".")]
    tars = tuple(sorted(name for name in seen if name.lower().endswith(".tar")))
    others = [f"{name}/" for name in folders if not name.startswith(".") and name not in _NO_DATA]
    others += [name for name in seen if place and is_image(name)]
    if tars and others:
        raise DataError(
            f"{place} holds {len(tars)} tars, such as {tars[0]}, beside {len(others)} folders or images, such as "
            f"{min(others)} (data.root): it is not clear what is the data set; move one of them into another folder"
        )
    return tars


def _tars(root: Root, below: str, split: str, names: tuple[str, ...]) -> Tars:
    """The tars in a folder, with the files that may tell about them: those beside them, and those in `root` that are
    for all splits."""
    place, beside = root.at(below), dict[str, bytes]()
    for folder in (below, ""):
        for name in sorted(root.entries(folder)[1]):
            is_about = name in (CLASS_NAMES, INFO) or (folder == below and (name == NUM_TARS or name.endswith(".json")))
            if is_about and name not in beside:
                beside[name] = root.read(os.path.join(folder, name), _MOST_BESIDE)
    has_list = "train" not in words_of(split) and not is_url(place)
    return Tars(place, split, names, beside, list_of_classes(Path(place)) if has_list else None)


def open_tars(tars: Tars, cache_dir: Path) -> Split:
    """Index of tars in a folder; from the cache while their sizes and times are the same.

    Only headers and labels are read. Raises DataError for a tar that cannot be used, with the remedy; ConfigError for a
    list of classes.
    """
    beside = zlib.crc32(repr((sorted(tars.beside.items()), tars.list_path)).encode())
    place = f"{tars.split} tars of {tars.place}"
    return open_kept(cache_dir, place, partial(_scanned, tars), files=tars.names, checksum=beside)


def _scanned(tars: Tars) -> tuple[Split, Marks]:
    paths, began = [f"{tars.place}/{name}" for name in tars.names], time.time()
    try:
        marks = marks_of(paths if tars.list_path is None else [*paths, str(tars.list_path)])
        split = split_of_tars(tars, _scan_folder(tars))
        now = marks_of(paths)
    except OSError as error:
        raise unreadable(error) from error
    young = {paths[i] for i in split.open_ends if began - marks[paths[i]][1] / 1e9 < _STILL_WRITTEN}
    if still := [path for path in paths if path in young or now[path][:2] != marks[path][:2]]:
        raise DataError(
            f"{len(still)} of {len(paths)} tars, such as {still[0]}, are still being written: they changed while they "
            "were read, or have no end mark and changed less than a minute ago (data.root); run the same command "
            "again later"
        )
    return split, marks


@contextmanager
def _opened(place: str, name: str) -> Iterator[tuple[Read, int]]:
    with open(f"{place}/{name}", "rb", 0, opener=open_regular) as file:
        source = FileBytes(file.fileno())
        yield source.read, source.num_bytes


def _scan_folder(tars: Tars) -> list[TarSamples]:
    outer, open_tar = tars.names[0], partial(_opened, tars.place)
    places = _patiently(tars, OPENING_SECONDS, partial(inner_tars, open_tar), outer) if len(tars.names) == 1 else {}
    if not places:
        return scan_tars(tars, open_tar, patience=OPENING_SECONDS)
    inner = replace(tars, place=f"{tars.place}/{outer}", names=tuple(places))
    samples = scan_tars(inner, partial(open_inner, open_tar, outer, places), patience=OPENING_SECONDS)
    return [samples_of_outer(places, samples)]


def scan_tars(tars: Tars, open_tar: Open, *, patience: float) -> list[TarSamples]:
    """The samples of each tar. patience: seconds for which a tar is read again after a temporary error. Raises
    DataError; ConfigError for a list of classes."""
    one_by_one = partial(_patiently, tars, patience)
    are_classes = len(tars.names) > 1 and not are_shards(tars.names)  # a single tar is no class
    may_lack = are_classes or tars.list_path is not None
    has_labels = not may_lack or one_by_one(partial(_has_labels_beside, open_tar), tars.names[0])
    scan = partial(one_by_one, partial(_scan, open_tar, has_labels))
    samples = scan_each("tars", tars.names, scan, num_threads=_THREADS)
    if tars.list_path and not are_classes and not has_labels:
        names = [os.fsdecode(name) for each in samples for name in each.names]
        classes = iter(listed_classes(names, tars.list_path, tars.place))
        for each in samples:
            each.labels = [*islice(classes, len(each.names))]
    return samples


def _patiently(tars: Tars, patience: float, work: Callable[[str], T], name: str) -> T:
    """Result of the work on a tar. Raises DataError with the name of the tar."""
    path = f"{tars.place}/{name}"
    which = path if len(tars.names) == 1 else f"{path}, one of {len(tars.names)} tars,"
    try:
        return retry_transient(partial(work, name), path, patience)
    except TarError as error:
        raise DataError(f"{which} {error} (data.root)") from error
    except OSError as error:
        raise DataError(f"{which} cannot be read: {error.strerror or error} (data.root)") from error


def _scan(open_tar: Open, has_labels: bool, name: str) -> TarSamples:
    with open_tar(name) as (read, num_bytes):
        samples = read_samples(read, num_bytes) if has_labels else read_images(read, num_bytes, name[:-4])
        samples.has_end_mark = has_end_mark(read, num_bytes)
        return samples


def split_of_tars(tars: Tars, samples: Sequence[TarSamples], **more: Any) -> Split:
    """The split of all samples. more: further columns. Raises DataError for labels that cannot be used, and for other
    numbers of samples than the files beside the tars tell."""
    labels = [label for each in samples for label in each.labels]
    if not labels:
        raise DataError(
            f"{tars.place} has only labels below 0, as a test set without labels (data.root); use another split"
        )
    positions, classes = number_labels(labels, class_names(tars.beside), tars.place)
    lengths = {n: len(each.labels) + each.others[BELOW_ZERO] for n, each in zip(tars.names, samples, strict=True)}
    counted = compare(tars.beside, tars.split, lengths, tars.place)
    return Split(
        place=tars.place,
        classes=classes,
        labels=positions,
        **joined([name for each in samples for name in each.names]),
        sizes=np.array([size for each in samples for size in each.sizes], np.int64),
        containers=tars.names,
        container_ids=np.repeat(np.arange(len(samples), dtype=np.int32), [len(each.labels) for each in samples]),
        offsets=np.array([start for each in samples for start in each.starts], np.int64),
        others=dict(sum((each.others for each in samples), Counter[str]()).most_common(_MOST_KINDS)),
        open_ends=tuple(i for i, each in enumerate(samples) if not each.has_end_mark and tars.names[i] not in counted),
        **more,
    )


def _has_labels_beside(open_tar: Open, name: str) -> bool:
    """Whether the first members of a tar have labels or captions beside images."""
    endings = defaultdict[bytes, set[str]](set)
    with open_tar(name) as (read, num_bytes):
        for member, *_ in islice(files_of_tar(read, num_bytes), _LOOKED_AT):
            start = member.rfind(b"/") + 1
            key, dot, ending = member[start:].partition(b".")
            endings[member[:start] + key].add(os.fsdecode(dot + ending).lower())
    return any(
        not found.isdisjoint((".cls", ".json")) or (".txt" in found and any(map(is_image, found)))
        for found in endings.values()
    )


def are_shards(names: Iterable[str]) -> bool:
    """Whether names of tars, such as shard-0007.tar, count without a gap. Names of ImageNet's classes are none."""
    counts = defaultdict[str, list[int]](list)
    for name in names:
        match = _SHARD.fullmatch(name[:-4])
        if match is None or _WORDNET.fullmatch(name[:-4]):
            return False
        counts[match[1]].append(int(match[2]))
    return all(max(found) - min(found) == len(found) - 1 for found in counts.values())
