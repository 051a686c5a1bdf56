"""What lies beside the tars of WebDataset: names of classes, and numbers of tars and of their samples.

Names of numbered classes are the lines of classnames.txt (CLIP benchmark), or a list in _info.json (timm). nshards.txt
(CLIP benchmark), _info.json and the JSON files of wids say how many tars and samples belong together.
"""

import json
import logging
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imagenet_opt.data.index.tar_samples import Label
from imagenet_opt.data.storage.retry import tell_once
from imagenet_opt.errors import DataError

INFO, CLASS_NAMES, NUM_TARS = "_info.json", "classnames.txt", "nshards.txt"
_WIDS = "wids-shard-index-v1"
_CLASS_LISTS = ("class_names", "classes", "label_names")
"""Keys of _info.json for a list of names."""
_MOST_CLASSES = 10**6
_WORD = re.compile(r"[a-z]+")
_SAME = ({"train", "training"}, {"val", "valid", "validation"})
"""Names of the same split."""


def words_of(split: str) -> set[str]:
    """Words that mean a split: validation means val."""
    split = split.lower()
    return next((words for words in _SAME if split in words), {split})


def is_named(name: str, split: str) -> bool:
    """Whether a word of the name means the split: imagenet1k-train-0000.tar."""
    return not words_of(split).isdisjoint(_WORD.findall(name.lower()))


def class_names(files: Mapping[str, bytes]) -> tuple[str, ...]:
    """Names of the numbered classes, unique; () without any. files: name -> content. Raises DataError."""
    if CLASS_NAMES in files:
        names = [line.strip() for line in files[CLASS_NAMES].decode("utf-8-sig", "replace").rstrip().splitlines()]
    else:
        about = _parsed(INFO, files.get(INFO, b"{}"))
        names = next((list(map(str, about[key])) for key in _CLASS_LISTS if isinstance(about.get(key), list)), [])
    return with_numbers(names)


def with_numbers(names: Sequence[str]) -> tuple[str, ...]:
    """Names of classes; one that occurs several times gets its number, as of the two cranes of ImageNet."""
    times = Counter(names)
    return tuple(f"{name} ({i})" if times[name] > 1 else name for i, name in enumerate(names))


def number_labels(
    labels: Sequence[Label], names: tuple[str, ...], place: str
) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """int32 positions in the classes, and the classes: for numbers `names` or, without names, all numbers up to the
    largest; for names those that occur, sorted. place: of the split, for messages. Raises DataError."""
    kinds = set(map(type, labels))
    if len(kinds) > 1:
        raise DataError(f"{place} has numbers and names as labels (data.root); write one kind into all of them")
    if str in kinds:
        classes = tuple(sorted(map(str, set(labels))))
        number_of = {name: number for number, name in enumerate(classes)}
        return np.array([number_of[str(label)] for label in labels], np.int32), classes
    largest = int(max(labels))
    if largest >= (len(names) or _MOST_CLASSES):
        most = f"{len(names)} classes have names" if names else f"at most {_MOST_CLASSES} classes work"
        raise DataError(f"{place} has the label {largest}, but {most} (data.root); number the classes from 0")
    return np.array(labels, np.int32), names or tuple(map(str, range(largest + 1)))


def compare(files: Mapping[str, bytes], split: str, found: Mapping[str, int], place: str) -> set[str]:
    """Compare the numbers of tars and of samples with what the files beside the tars say. files: name -> content.
    found: tar -> number of samples. Returns the tars whose numbers of samples a file says. Missing tars are a warning,
    because a part of a data set may be wanted. Raises DataError for a tar with another number, or a damaged file."""
    told = set[str]()
    for file, content in files.items():
        lengths, num_tars = dict[str, int](), 0
        try:
            if file == NUM_TARS:
                num_tars = int(content)
            elif file.endswith(".json"):
                about = _parsed(file, content)
                lengths = _lengths_of_info(about, split) if file == INFO else _lengths_of_wids(about)
                num_tars = 0 if lengths.keys().isdisjoint(found) else len(lengths)  # else it is about another split
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataError(f"{file} beside the tars is damaged (data.root); copy it again, or remove it") from error
        for name, num in found.items():
            if (listed := lengths.get(name, num)) != num:
                raise DataError(f"{place}/{name} has {num} images, but {file} says {listed} (data.root); copy it again")
        if num_tars and num_tars != len(found):
            missing = next((f", such as {name}" for name in lengths if name not in found), "")
            tell_once(
                f"{place} holds {len(found)} of the {num_tars} tars of {file}{missing}: only these are used "
                "(data.root)",
                logging.WARNING,
            )
        told |= lengths.keys()
    return told


def _lengths_of_info(about: Mapping[str, Any], split: str) -> dict[str, int]:
    for name, part in about.get("splits", {}).items():
        if is_named(name, split) and "shard_lengths" in part:
            files = map(os.path.basename, part["filenames"])
            return dict(zip(files, map(int, part["shard_lengths"]), strict=True))
    return {}


def _lengths_of_wids(about: Mapping[str, Any]) -> dict[str, int]:
    if about.get("__kind__") != _WIDS:
        return {}
    return {os.path.basename(shard["url"]): int(shard["nsamples"]) for shard in about["shardlist"]}


def _parsed(name: str, content: bytes) -> dict[str, Any]:
    try:
        about = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{name} beside the tars is no JSON (data.root); copy it again, or remove it") from error
    return about if isinstance(about, dict) else {}
