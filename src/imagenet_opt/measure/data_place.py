"""Where a run's data is, and the commands, as they are typed, that bring it nearer."""

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from imagenet_opt.errors import printable

LOCAL = "/local/disk/packed"
"""Where data is to be laid: a place that the user has to choose."""


@dataclass(frozen=True)
class DataPlace:
    """root: data.root as configured; None where it is not known. packed: shards, which cannot be packed again."""

    root: str | None = None
    train_folder: str = "train"
    val_folder: str = "val"
    packed: bool = False

    @classmethod
    def configured(cls, data: Mapping[str, Any] | None, *, packed: bool) -> "DataPlace":
        """data: that group of the configuration; a root that is still to be interpolated is not known."""
        data = data or {}
        root = data.get("root")
        known = isinstance(root, str) and "${" not in root
        folders = {split: data.get(f"{split}_folder") or split for split in ("train", "val")}
        return cls(root if known else None, folders["train"], folders["val"], packed)

    @property
    def words(self) -> str:
        """data.root=... and, where they are not the usual ones, the folders below, as words of a command."""
        words = [f"data.root={self.root or 'YOUR_FOLDER'}"]
        if self.root:
            folders = {"train": self.train_folder, "val": self.val_folder}
            words += [f"data.{split}_folder={folder}" for split, folder in folders.items() if folder != split]
        return " ".join(shlex.quote(printable(word)) for word in words)

    def hydrate(self) -> str:
        return f"imagenet-opt hydrate {self.words}"

    def pack(self, *options: str) -> str:
        """To shards on a local disk. Shards themselves are only copied there; the images they were made of can be
        packed again.

        options: such as max_side=500, which make images smaller.
        """
        if self.packed and not options:
            folder = "YOUR_FOLDER" if self.root is None else os.path.expanduser(self.root)
            return f"cp -r {shlex.quote(printable(folder))} {LOCAL}"
        data = "data.root=YOUR_ORIGINALS" if self.packed else self.words
        return " ".join(["imagenet-opt pack", data, f"out={LOCAL}", *options])
