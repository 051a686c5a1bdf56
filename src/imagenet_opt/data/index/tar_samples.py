"""Samples of a WebDataset tar: files KEY.jpg and KEY.cls or KEY.json; KEY ends at the first dot of a file's name
(webdataset.github.io/webdataset, "The WebDataset Format").

The label is the number or the name of a class, in KEY.cls or as "label" in KEY.json. Tars in a tar, as
ILSVRC2012_img_train.tar has one for each class, have their images as records of the outer tar.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

from imagenet_opt.data.index.layout import IMAGE_SUFFIXES, LISTS, is_image, kind
from imagenet_opt.data.index.split import numbers
from imagenet_opt.data.index.tar_members import Member, Read, TarError, members

Label = int | str
Open = Callable[[str], AbstractContextManager[tuple[Read, int]]]
"""Opens a tar by its name for reading, and tells its size in bytes."""
Places = Mapping[str, tuple[int, int]]
"""Name of a tar -> its start and size in the outer tar."""
_Place = tuple[bytes, int, int]

BELOW_ZERO = "images with a label below 0"
"""A kind of what is left out: sets without labels have -1."""
_IMAGES = {ending.encode() for ending in IMAGE_SUFFIXES}
_MOST_TEXT = 2**20
"""Most bytes of a .cls or .json file."""


@dataclass
class TarSamples:
    """Samples of a tar, in the order of their images. names: of the images. starts, sizes: place of each image, in
    bytes. others: kinds of members that were left out -> number. has_end_mark: see the function of this name."""

    names: list[bytes]
    starts: list[int]
    sizes: list[int]
    labels: list[Label]
    others: Counter[str]
    has_end_mark: bool = True


@dataclass
class _Found:
    """The members of a tar by their keys: (name, start, size) of images; labels. more: images whose endings have
    another dot, as KEY.left.jpg. others: endings of other members -> number."""

    images: dict[bytes, _Place] = field(default_factory=dict)
    cls: dict[bytes, Label] = field(default_factory=dict)
    json: dict[bytes, Label | None] = field(default_factory=dict)
    more: dict[bytes, list[_Place]] = field(default_factory=dict)
    others: Counter[bytes] = field(default_factory=Counter)


def files_of_tar(read: Read, num_bytes: int) -> Iterator[Member]:
    """The members. Raises TarError at once for a tar of tars, of which a bucket would send every byte."""
    found = members(read, num_bytes)
    first = list(islice(found, 1))
    if first and kind(os.fsdecode(first[0][0])) == ".tar":
        raise TarError(
            f"begins with the tar {_shown(first[0][0])}; tars in a tar are read in a folder where it is the only tar "
            "of its split: move or download it there, and use data.root=FOLDER, or imagenet-opt pack data.root=FOLDER "
            "out=PACKED, a folder or a bucket. Or unpack it"
        )
    return chain(first, found)


def read_samples(read: Read, num_bytes: int) -> TarSamples:
    """The samples of a tar, see `members`. Raises TarError for a tar without images, for an image without a label or
    with two of them, and for a key with two images."""
    found = _find(read, num_bytes)
    images = found.images
    if only := {key: places for key, places in found.more.items() if key not in images}:
        images = dict(sorted((images | _first_of_each(only)).items(), key=lambda item: item[1][1]))
    others = Counter({os.fsdecode(ending) or "no ending": num for ending, num in found.others.items()})
    if not images:
        raise TarError(_without_images(others + Counter({".cls": len(found.cls), ".json": len(found.json)})))
    labels: list[Any] = [found.cls.get(key, found.json.get(key)) for key in images]
    if None in labels:
        raise TarError(_without_labels(found, images, labels))
    places = list(images.values())
    if left_out := {i for i, label in enumerate(labels) if isinstance(label, int) and label < 0}:
        others[BELOW_ZERO] = len(left_out)
        places, labels = ([each for i, each in enumerate(of) if i not in left_out] for of in (places, labels))
    names, starts, sizes = map(list, zip(*places, strict=True)) if places else ([], [], [])
    return TarSamples(names, starts, sizes, labels, others)


def read_images(read: Read, num_bytes: int, class_name: str) -> TarSamples:
    """The images of a tar of one class, in the order of their names, as in a folder. Raises TarError for a tar without
    images, see `members`."""
    places, others = list[_Place](), Counter[str]()
    for name, start, size, is_file in files_of_tar(read, num_bytes):
        if not is_image(file := os.fsdecode(name)):
            others[kind(file)] += 1
        elif not is_file:
            raise _link(name)
        else:
            places.append((name, start, size))
    if not places:
        raise TarError(_without_images(others))
    names, starts, sizes = map(list, zip(*sorted(places), strict=True))
    return TarSamples(names, starts, sizes, [class_name] * len(places), others)


def inner_tars(open_tar: Open, outer: str) -> Places:
    """The tars in a tar, sorted; {} for one that begins with another file. Raises TarError for other files beside
    tars."""
    found, others = dict[str, tuple[int, int]](), Counter[str]()
    with open_tar(outer) as (read, num_bytes):
        for name, start, size, is_file in members(read, num_bytes):
            file = os.path.basename(os.fsdecode(name))
            if kind(file) == ".tar" and is_file and file not in found:
                found[file] = start, size
            elif found:
                others[kind(file)] += 1
            else:
                return {}
    if others:
        raise TarError(f"holds {len(found)} tars, and beside them or twice {numbers(others)}; leave these out")
    return dict(sorted(found.items()))


@contextmanager
def open_inner(open_tar: Open, outer: str, places: Places, name: str) -> Iterator[tuple[Read, int]]:
    """An Open for the tars in `outer`."""
    first, num_bytes = places[name]
    with open_tar(outer) as (read, _):
        yield lambda start, size: read(first + start, max(0, min(size, num_bytes - start))), num_bytes


def samples_of_outer(places: Places, samples: Sequence[TarSamples]) -> TarSamples:
    """The samples of all inner tars, with their places in the outer one."""
    return TarSamples(
        names=[name for each in samples for name in each.names],
        starts=[
            first + start for (first, _), each in zip(places.values(), samples, strict=True) for start in each.starts
        ],
        sizes=[size for each in samples for size in each.sizes],
        labels=[label for each in samples for label in each.labels],
        others=sum((each.others for each in samples), Counter[str]()),
        has_end_mark=all(each.has_end_mark for each in samples),
    )


def _find(read: Read, num_bytes: int) -> _Found:
    found = _Found()
    images = found.images
    for name, start, size, is_file in files_of_tar(read, num_bytes):
        dot = name.find(b".", slash := name.rfind(b"/") + 1)
        key, ending = (name[:dot], name[dot:].lower()) if dot > slash else (b"", b"")  # a hidden file has no key
        if ending in _IMAGES:
            if not is_file or key in images:
                raise _twice(images[key][0], name) if is_file else _link(name)
            images[key] = name, start, size
        elif ending in (b".cls", b".json"):
            if size > _MOST_TEXT:
                raise TarError(f"has {size} bytes in {_shown(name)}, which is no label; leave it out")
            _add_label(found, key, ending, name, read(start, size))
        elif ending and is_file and is_image(os.fsdecode(ending)):
            found.more.setdefault(key, []).append((name, start, size))
        else:
            found.others[ending] += 1
    return found


def _add_label(found: _Found, key: bytes, ending: bytes, name: bytes, text: bytes) -> None:
    """Add the label in a .cls or .json file. Raises TarError for one that differs from another one of the key."""
    cls, of_json = found.cls, found.json
    if key in (cls if ending == b".cls" else of_json):
        raise _twice(name, name)
    if ending == b".cls":
        cls[key] = _number_or_name(text, name)
    else:
        is_same = key in cls and b'"label": %b,' % str(cls[key]).encode() in text  # as json.dumps writes a number
        of_json[key] = None if is_same else _label_of_json(text, name)
    first, second = cls.get(key), of_json.get(key)
    if first != second and type(first) is type(second):
        raise TarError(
            f"has two labels for {_shown(key)}: {first!r} in .cls and {second!r} in .json; remove one of them"
        )


def _number_or_name(text: bytes, file: bytes) -> Label:
    word = text.strip()
    if word.isdigit() or (word[:1] == b"-" and word[1:].isdigit()):
        return int(word[:20])
    name = word[:1000].decode("utf-8", "replace")
    if not name or not name.isprintable() or "\ufffd" in name:
        raise TarError(f"has the label {text[:20]!r} in {_shown(file)}; expected the number or the name of a class")
    return name


def _label_of_json(text: bytes, file: bytes) -> Label | None:
    try:
        about = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TarError(f"has no JSON in {_shown(file)}; write it again") from error
    label = about.get("label") if isinstance(about, dict) else None
    if isinstance(label, str):
        return _number_or_name(label.encode("utf-8", "replace"), file)
    if isinstance(label, bool) or not isinstance(label, int | None):
        shown = repr(label)[:40]
        raise TarError(f"has the label {shown} in {_shown(file)}; expected the number or the name of a class")
    return label


def _first_of_each(places: Mapping[bytes, list[_Place]]) -> dict[bytes, _Place]:
    for first, *more in places.values():
        if more:
            raise _twice(first[0], more[0][0])
    return {key: first for key, (first,) in places.items()}


def _link(name: bytes) -> TarError:
    return TarError(
        f"has {_shown(name)}, which is a link or a sparse file; write the image itself (tar --dereference "
        "--hard-dereference, without --sparse)"
    )


def _twice(first: bytes, second: bytes) -> TarError:
    if first == second:
        return TarError(f"has {_shown(first)} twice; keep one of them")
    return TarError(
        f"has two images for one key, {_shown(first)} and {_shown(second)}; keep one image for each key, which ends at "
        "the first dot of the file's name"
    )


def _without_images(others: Counter[str]) -> str:
    if not others:
        return "is empty; copy it again, or remove it"
    return f"holds no images but {numbers(others)}: write encoded images (.jpg, .png, .webp)"


def _without_labels(found: _Found, images: Mapping[bytes, _Place], labels: list[Label | None]) -> str:
    missing, key = labels.count(None), list(images)[labels.index(None)]
    of = f"{missing} of {len(images)} images" if missing < len(images) else f"{missing} images"
    captions = "; its .txt files are captions and not classes" if b".txt" in found.others else ""
    of_imagenet = ""
    if b"ILSVRC2012_val_" in images[key][0]:
        of_imagenet = (
            f", or put {LISTS} beside the tar, in a folder: what lies in a bucket is downloaded or packed first"
        )
    return (
        f"has {of} without a label (.cls, or .json with label), such as {_shown(images[key][0])}{captions}; write the "
        f"number of its class into KEY.cls, or unpack the images into a folder for each class{of_imagenet}"
    )


def _shown(name: bytes) -> str:
    return repr(os.fsdecode(name)[:200])
