"""The overrides and the commands of remedies, with the folders of the run."""

import os
import shlex
from typing import Any

from omegaconf import OmegaConf

from imagenet_opt.config.overrides import key_of
from imagenet_opt.doctor.evidence import Evidence
from imagenet_opt.errors import printable
from imagenet_opt.object_storage import is_url

Texts = tuple[str, ...]
_LOCAL = "/local/disk/packed"  # the user must choose a folder on a local disk
_USUAL = {"train_folder": "train", "val_folder": "val", "cache_dir": None}
"""Keys of data.* -> default values."""


def changing(evidence: Evidence, *overrides: str) -> Texts:
    """The overrides that change a value in effect, as configured or as "auto" was resolved."""

    def is_in_effect(word: str) -> bool:
        key = key_of(word)
        value = OmegaConf.select(OmegaConf.from_dotlist([word]), key)
        return value in (evidence.configured(key, ""), getattr(evidence.setup, key.rpartition(".")[2], ""))

    return tuple(word for word in overrides if not is_in_effect(word))


def _data(evidence: Evidence, key: str) -> Any:
    """A configured value of data.*; None if it is missing or an unresolved interpolation."""
    value = evidence.configured(f"data.{key}")
    return None if "${" in str(value) else value


def data_words(evidence: Evidence) -> str:
    """Arguments of a command: data.root=..., folders below it that do not have their default names, and of a URL the
    local cache."""
    root = _data(evidence, "root")
    words = [f"data.root={root or 'YOUR_FOLDER'}"]
    for key, usual in _USUAL.items() if root else ():
        if (value := _data(evidence, key)) not in (None, usual) and (usual or is_url(root)):
            words.append(f"data.{key}={value}")
    return " ".join(shlex.quote(printable(word)) for word in words)


def hydrate(evidence: Evidence) -> str:
    """The command that reads all data once; of a URL, into the local cache."""
    limit = _data(evidence, "cache_gb") if is_url(_data(evidence, "root")) else None
    return f"imagenet-opt hydrate {data_words(evidence)}" + ("" if limit is None else f" data.cache_gb={limit}")


def pack(evidence: Evidence, *options: str) -> str:
    """The command that packs the data onto a local disk. Shards are copied; with options, the original images are
    packed again. options: make images smaller, such as for=224."""
    root, packed = _data(evidence, "root"), evidence.setup.packed
    if packed and not options and is_url(root):
        return hydrate(evidence)
    if packed and not options:
        return f"cp -r {shlex.quote(printable(os.path.expanduser(root or 'YOUR_FOLDER')))} {_LOCAL}"
    data = "data.root=YOUR_ORIGINALS" if packed else data_words(evidence)
    return " ".join(["imagenet-opt pack", data, f"out={_LOCAL}", *options])


def smaller_pack(evidence: Evidence) -> str:
    """The command that packs images as small as the image size of the run allows."""
    return pack(evidence, "for=224" if evidence.pack is None else evidence.pack.option)
