"""Remedies that the user can type: overrides that change a value, and commands with the folders of the run."""

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from imagenet_opt.config.overrides import key_of, value_of
from imagenet_opt.doctor.evidence import Evidence
from imagenet_opt.errors import printable
from imagenet_opt.object_storage import is_url

LOCAL = "/local/disk/packed"
LOCAL_CACHE = "/local/nvme/cache"
"""Placeholders for folders on a local disk that the user must choose."""


@dataclass(frozen=True)
class DataPlace:
    """Where the data is. root: data.root as configured; None if unknown. packed: whether the data is in shards. cache:
    the configured keys of the local cache of a URL, with their values."""

    root: str | None = None
    train_folder: str = "train"
    val_folder: str = "val"
    packed: bool = False
    cache: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def configured(cls, data: Mapping[str, Any] | None, *, packed: bool) -> "DataPlace":
        """From the group `data` of the configuration. A root with an unresolved interpolation counts as unknown."""
        data = data or {}
        root = data.get("root")
        is_known = isinstance(root, str) and "${" not in root
        folders = {split: data.get(f"{split}_folder") or split for split in ("train", "val")}
        cache = {f"data.{key}": data.get(key) for key in ("cache_dir", "cache_gb")} if is_url(root) else {}
        cache = {key: value for key, value in cache.items() if value is not None and "${" not in str(value)}
        return cls(root if is_known else None, folders["train"], folders["val"], packed, cache)

    @property
    def words(self) -> str:
        """Arguments of a command: data.root=..., and the folders below it that do not have their default names."""
        words = [f"data.root={self.root or 'YOUR_FOLDER'}"]
        if self.root:
            folders = {"train": self.train_folder, "val": self.val_folder}
            words += [f"data.{split}_folder={folder}" for split, folder in folders.items() if folder != split]
        return " ".join(shlex.quote(printable(word)) for word in words)

    def hydrate(self, *changes: str) -> str:
        """The command that reads all data once; of a URL, into the local cache. changes: other settings of the cache,
        such as data.cache_gb=null."""
        changed = set(map(key_of, changes))
        same = [f"{key}={_text(value)}" for key, value in self.cache.items() if key not in changed]
        return " ".join(["imagenet-opt hydrate", self.words, *map(shlex.quote, map(printable, (*same, *changes)))])

    def pack(self, *options: str) -> str:
        """The command that packs the data onto a local disk. Shards are copied; with options, the original images are
        packed again. options: make images smaller, such as for=224."""
        if self.packed and not options and is_url(self.root):
            return self.hydrate(f"data.cache_dir={LOCAL_CACHE}")
        if self.packed and not options:
            folder = "YOUR_FOLDER" if self.root is None else os.path.expanduser(self.root)
            return f"cp -r {shlex.quote(printable(folder))} {LOCAL}"
        data = "data.root=YOUR_ORIGINALS" if self.packed else self.words
        return " ".join(["imagenet-opt pack", data, f"out={LOCAL}", *options])


_INSTEAD = {
    "item": "x.detach() instead of x.item()",
    "tolist": "x.detach() instead of x.tolist()",
    "cpu": 'x.to("cpu", non_blocking=True) instead of x.cpu()',
    "numpy": "x.detach() instead of x.numpy()",
    "to": "x.to(device, non_blocking=True) of pinned memory",
    "cuda": "x.cuda(non_blocking=True) of pinned memory",
    "__bool__": "torch.where(condition, a, b) instead of `if condition`",
    "__float__": "x.detach() instead of float(x)",
    "__int__": "x.detach() instead of int(x)",
    "__format__": "the text of x at logging steps only",
    "nonzero": "torch.where(mask, a, b) instead of indices",
    "masked_select": "torch.where(mask, x, 0) instead of a selection",
    "__getitem__": "torch.where(mask, x, 0) instead of x[mask]",
    "__setitem__": "torch.where(mask, y, x) instead of x[mask] = y",
}
"""Operation that waits for the GPU -> an operation that does not."""


def changing(evidence: Evidence, *overrides: str) -> tuple[str, ...]:
    """The overrides that change a value in effect, as configured or as "auto" was resolved."""
    return tuple(
        override for override in overrides if not _is_in_effect(evidence, key_of(override), value_of(override))
    )


def _is_in_effect(evidence: Evidence, key: str, value: str) -> bool:
    resolved = evidence.facts.known().get(key.rpartition(".")[2], "")
    return value in (_text(evidence.configured(key, "")), _text(resolved))


def _text(value: Any) -> str:
    """A value as text of an override."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def saves(evidence: Evidence) -> tuple[str, ...]:
    """Overrides that write checkpoints every 15 minutes; empty if the run writes them less often."""
    minutes = evidence.configured("checkpoint.every_minutes")
    seldom = isinstance(minutes, int | float) and minutes >= 15
    return changing(evidence, "checkpoint.every_n_steps=null", *(() if seldom else ("checkpoint.every_minutes=15",)))


def callbacks_like(evidence: Evidence, words: str) -> dict[str, str]:
    """Key -> class of each configured callback whose class name contains `words`."""
    classes = {
        f"callbacks.{name}": str(node["_target_"]).rpartition(".")[2]
        for name, node in evidence.configured("callbacks", {}).items()
        if isinstance(node, Mapping) and "_target_" in node
    }
    return {key: name for key, name in classes.items() if words in name}


def data_place(evidence: Evidence) -> DataPlace:
    return DataPlace.configured(evidence.configured("data"), packed=evidence.facts.packed)


def smaller_pack(evidence: Evidence) -> str:
    """The command that packs images as small as the image size of the run allows."""
    return data_place(evidence).pack(evidence.facts.pack_option or "for=224")


def list_processes(names: str) -> str:
    """The command that shows processes; without a pid, the busiest. names: as "python (pid 7), java (pid 8)"."""
    pids = re.findall(r"\(pid (\d+)", names)
    return f"ps -o pid,user,pcpu,etime,args -p {','.join(pids)}" if pids else "top -b -n 1 -o %CPU | head -n 17"


def without_waiting(waits: str) -> tuple[str, ...]:
    """For each line of code that waits, an operation that does not. waits: as "item at mine.py:7, cpu at loss.py:9"."""
    places = (wait.partition(" at ") for wait in waits.split(", ") if " at " in wait)
    keep = "keep the result of {} on the GPU"
    return tuple(f"{place}: {_INSTEAD.get(name, keep.format(name))}" for name, _, place in places)
