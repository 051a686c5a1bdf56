"""Where a split lies; and, for a folder without class folders, what it holds instead and the remedy."""

import os
import posixpath
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from imagenet_opt.data.index.shard_index import is_packed
from imagenet_opt.data.index.split import numbers
from imagenet_opt.errors import DataError, DatasetNotFound
from imagenet_opt.object_storage import SCHEMES, is_hub, is_url
from imagenet_opt.regular_file import open_regular, read_part

IMAGE_SUFFIXES = (
    ".jpeg", ".jpg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm",
)  # fmt: skip
"""Endings of image files, in lower case."""
KIT, NUMBERS = "ILSVRC2012_devkit_t12.tar.gz", "ILSVRC2012_validation_ground_truth.txt"
"""The development kit, and its file with the number of the class of each validation image, a line each."""
_CLS_LOC = "ILSVRC/Data/CLS-LOC"
_ILSVRC = (_CLS_LOC, "Data/CLS-LOC", "CLS-LOC", f"imagenet-object-localization-challenge/{_CLS_LOC}")
"""Places of train/ and val/ below a folder into which Kaggle's ImageNet was unpacked."""
_LISTS = ("LOC_val_solution.csv", KIT, f"{KIT[:-7]}/data/{NUMBERS}", "imagenet_2012_validation_synset_labels.txt")
"""Lists of the classes of validation images: Kaggle's, the development kit, also unpacked, and lines with a class."""
LISTS = f"Kaggle's {_LISTS[0]}, {KIT} or {_LISTS[3]}"
_SPLITS = ("train", "val", "validation", "test")
_ARCHIVES = {".zip", ".gz", ".tgz", ".xz", ".bz2", ".zst", ".7z", ".rar"}
_MOST_ENTRIES = 50
"""Most entries of a folder that are read for a suggestion: storage may be slow, and a data set large."""


class Root:
    """data.root, whose folders are listed once each, since storage may be slow. place: its full path or URL. This class
    is for a folder, below which the folders of Kaggle's ImageNet are found too."""

    def __init__(self, place: str) -> None:
        self.place, self._entries = place, dict[str, tuple[list[str], list[str]]]()

    def at(self, below: str) -> str:
        """Full path or URL of a folder."""
        return str(split_place(Path(self.place), below))

    def entries(self, below: str) -> tuple[list[str], list[str]]:
        """Names of the folders and of the files in a folder; none if it is missing. Raises DataError, OSError."""
        return self._entries.get(below) or self._entries.setdefault(below, self._listed(below))

    def read(self, name: str, most: int) -> bytes:
        """Content of a file, at most `most` bytes."""
        folder, _, file_name = name.rpartition("/")
        try:
            with open(f"{self.at(folder)}/{file_name}", "rb", 0, opener=open_regular) as file:
                return read_part(file.fileno(), 0, most)
        except OSError as error:
            raise unreadable(error) from error

    def etags(self, names: Sequence[str]) -> tuple[str, ...]:
        """Tags of objects that were listed; () for files."""
        return ()

    def _listed(self, below: str) -> tuple[list[str], list[str]]:
        try:
            return entries_of(Path(self.at(below)))
        except OSError as error:
            raise unreadable(error) from error


def root_of(configured: str | None) -> Path | str | None:
    """data.root as a folder or, because a Path would lose a slash, as the text of a URL. Raises DatasetNotFound for a
    URL that is not read."""
    if not configured:
        return None
    if is_url(configured) or is_hub(configured):
        return configured
    if "://" in configured and not os.path.exists(configured):
        known = ", ".join(f"{scheme}://" for scheme in (*SCHEMES, "hf"))
        raise DatasetNotFound(f"cannot read {configured} (data.root); expected a folder, or a URL with {known}")
    return Path(configured)


def split_url(root: str, split: str) -> str:
    """URL of a split."""
    scheme, _, place = root.partition("://")
    return f"{scheme}://{posixpath.normpath(posixpath.join(place, split))}"


def split_folder(root: Path | None, split: str) -> Path:
    """Folder of a split. Raises DatasetNotFound if it is missing, or has neither class folders nor a pack."""
    if root is None:
        raise DatasetNotFound(f"data.root is not set; expected a folder that holds {split}/<class>/*.JPEG")
    place, expected = root.expanduser(), f"expected {split}/<class>/*.JPEG in it"
    folder = split_place(root, split)
    try:
        if folder.is_dir():
            if not is_packed(folder) and not list_of_flat(folder) and (found := instead_of_classes(folder, root)):
                raise DatasetNotFound(f"{found} (data.root, data.train_folder, data.val_folder)")
            return folder
        if place.is_file():
            remedy = f"Unpack it, and set data.root to the folder that holds {split}/"
            if place.suffix in (".tar", ".parquet"):
                remedy = f"Tars and Parquet files are read from their folder: data.root={place.resolve().parent}"
            raise DatasetNotFound(f"{root} is a file, not a folder (data.root); {expected}. {remedy}")
        if not place.is_dir():
            raise DatasetNotFound(f"no folder {root} (data.root); {expected}")
        raise DatasetNotFound(f"no {split}/ under {root} (data.root); {expected}. {_remedy(place, split)}")
    except OSError as error:
        raise unreadable(error) from error


def split_place(root: Path, split: str) -> Path:
    """`root`/`split`; if there is none, that of Kaggle's ImageNet below `root`, if there is one."""
    place = root.expanduser()
    places = (place / name / split for name in ("", *_ILSVRC))
    return next((each for each in places if each.is_dir()), place / split).resolve()


def list_of_classes(folder: Path) -> Path | None:
    """A list of the classes of validation images, in their folder or up to four folders above."""
    places = [place / name for place in (folder, *list(folder.parents)[:4]) for name in _LISTS]
    return next((list_ for list_ in places if list_.is_file()), None)


def list_of_flat(folder: Path) -> Path | None:
    """The list for images directly in `folder`, if there are any, and no folders."""
    return list_of_classes(folder) if has_flat_images(folder) else None


def has_flat_images(folder: Path) -> bool:
    """Whether the folder has images, and neither folders nor tars."""
    folders, files = entries_of(folder)
    return not folders and any(map(is_image, files)) and not any(name.lower().endswith(".tar") for name in files)


def entries_of(folder: Path) -> tuple[list[str], list[str]]:
    """Names of the folders and of the files in a folder; none if it is missing."""
    if not folder.is_dir():
        return [], []
    with os.scandir(folder) as entries:
        is_folder = {entry.name: entry.is_dir() for entry in entries}
    folders = [name for name, is_one in is_folder.items() if is_one]
    return folders, [name for name, is_one in is_folder.items() if not is_one]


def _remedy(root: Path, split: str) -> str:
    """A remedy, according to the content of `root`, which has no folder `split`."""
    here = root.resolve()
    if here.name in ("train", "val") and (here.parent / split).is_dir():
        return f"This is a split itself; did you mean data.root={here.parent}?"
    if (root / "train").is_dir():
        return "Put its images there, or name the folder that holds them (data.train_folder, data.val_folder)"
    with os.scandir(root) as entries:
        below = sorted(entry.name for entry in islice(entries, _MOST_ENTRIES) if entry.is_dir())
    for name in below:
        if (root / name / split).is_dir():
            val = root / name / "val"
            flat = instead_of_classes(val, root / name) if val.is_dir() else ""
            return f"Found {name}/{split}/; did you mean data.root={root / name}? {flat}".rstrip()
    are_classes = any(_has_images(root / name) for name in below if name not in _SPLITS)
    for folder in (root, *(root / name for name in below if not are_classes)):
        if found := instead_of_classes(folder, root):
            return found
    which = f"{root} holds class folders: split" if are_classes else "If a folder holds class folders themselves, split"
    return (
        f"{which} them into train/ and val/ with examples/split_folder.py (docs/data.md); to look at speed only, set "
        "data.root to that folder: data.train_folder=. data.val_folder=. trains and validates on the same images"
    )


def _has_images(folder: Path) -> bool:
    with os.scandir(folder) as entries:
        return any(is_image(entry.name) for entry in islice(entries, _MOST_ENTRIES))


def unreadable(error: OSError) -> DataError:
    return DataError(f"cannot list {error.filename}: {error.strerror}; make it readable (data.root)")


def is_image(name: str) -> bool:
    """Whether the name is one of an image. Files ._NAME of macOS hold attributes of NAME, no image."""
    return name.lower().endswith(IMAGE_SUFFIXES) and not os.path.basename(name).startswith("._")


def kind(name: str) -> str:
    """The kind of a file that is no image: "._*", its ending in lower case, or "no ending"."""
    file = os.path.basename(name)
    return "._*" if file.startswith("._") else os.path.splitext(file)[1].lower() or "no ending"


def instead_of_classes(folder: Path, root: Path | str) -> str:
    """What `folder` holds if it has files and no folders, with the remedy; else "". root: data.root."""
    folders, files = entries_of(folder)
    return "" if folders else describe(files, folder, root)


def describe(names: Sequence[str], place: Path | str, root: Path | str) -> str:
    """What the files `names` in `place`, a folder or a URL, are, with the remedy; "" if there are none."""
    tars = sorted(name for name in names if name.lower().endswith(".tar"))
    num_images, parquet = sum(map(is_image, names)), [name for name in names if name.lower().endswith(".parquet")]
    if parquet:
        return (
            f"{place} holds Parquet files, such as {min(parquet)}, but none of this split; expected train-*.parquet "
            "and val-*.parquet in data.root, or in data/ in it. If names begin with other words, set data.train_folder "
            "and data.val_folder to these words"
        )
    if tars:
        return (
            f"{place} holds {len(tars)} tars, such as {tars[0]}; put the tars of each split into {root}/train/ and "
            f"{root}/val/, or name them after it (NAME-train-0000.tar, NAME-val-0000.tar)"
        )
    if num_images:
        need = f"Validation images need {LISTS} in it or in a folder above; or imagenet-opt pack data.root={root} "
        need += "out=PACKED val_labels=FILE, then data.root=PACKED"
        if is_url(place):
            need = "Lists of classes are read in folders: download the data set and use data.root=FOLDER, or "
            need += "imagenet-opt pack data.root=FOLDER out=PACKED, a folder or a bucket"
        return f"{place} holds {num_images} images and no class folders. {need}. Training needs a folder for each class"
    kinds = Counter(map(kind, names))
    unpack = ""
    if _ARCHIVES & {*kinds}:
        unpack = "; unpack the archives, and set data.root to the folder that then holds train/"
    return f"{place} holds {len(names)} files: {numbers(kinds)}{unpack}" if names else ""
