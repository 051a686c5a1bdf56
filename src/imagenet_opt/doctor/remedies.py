"""Remedies that the user can type: overrides that change a value, commands with the run's own folders."""

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from imagenet_opt.doctor.evidence import Evidence
from imagenet_opt.errors import printable

LOCAL = "/local/disk/packed"
"""Placeholder for a folder on a local disk that the user must choose."""


@dataclass(frozen=True)
class DataPlace:
    """Where the data is. root: data.root as configured; None if unknown. packed: the data is in shards, which cannot
    be packed again."""

    root: str | None = None
    train_folder: str = "train"
    val_folder: str = "val"
    packed: bool = False

    @classmethod
    def configured(cls, data: Mapping[str, Any] | None, *, packed: bool) -> "DataPlace":
        """From the configuration's group `data`. A root with an unresolved interpolation counts as unknown."""
        data = data or {}
        root = data.get("root")
        is_known = isinstance(root, str) and "${" not in root
        folders = {split: data.get(f"{split}_folder") or split for split in ("train", "val")}
        return cls(root if is_known else None, folders["train"], folders["val"], packed)

    @property
    def words(self) -> str:
        """data.root=... and the folders below it, unless they have their default names, as command-line arguments."""
        words = [f"data.root={self.root or 'YOUR_FOLDER'}"]
        if self.root:
            folders = {"train": self.train_folder, "val": self.val_folder}
            words += [f"data.{split}_folder={folder}" for split, folder in folders.items() if folder != split]
        return " ".join(shlex.quote(printable(word)) for word in words)

    def hydrate(self) -> str:
        return f"imagenet-opt hydrate {self.words}"

    def pack(self, *options: str) -> str:
        """The command that packs the data to a local disk. Shards are only copied; with options, the command packs the
        original images again.

        options: such as for=224, which make images smaller.
        """
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
"""Operation of `host_syncs` -> an operation that does not wait."""


def changing(evidence: Evidence, *overrides: str) -> tuple[str, ...]:
    """The overrides that change a value in effect."""
    return tuple(text for text in overrides if not _is_in_force(evidence, *text.split("=", 1)))


def saves(evidence: Evidence) -> tuple[str, ...]:
    """Overrides that write checkpoints every 15 minutes; empty if they are written less often already."""
    minutes = configured(evidence, "checkpoint.every_minutes")
    seldom = isinstance(minutes, int | float) and minutes >= 15
    return changing(evidence, "checkpoint.every_n_steps=null", *(() if seldom else ("checkpoint.every_minutes=15",)))


def configured(evidence: Evidence, key: str) -> Any:
    """The value of a dotted key; None also if the configuration is unknown."""
    return _node(evidence.measurements.config, key)[1]


def callbacks_like(evidence: Evidence, words: str) -> dict[str, str]:
    """Key -> class of each configured callback whose class name contains `words`."""
    callbacks = configured(evidence, "callbacks")
    classes = {
        f"callbacks.{name}": str(node["_target_"]).rpartition(".")[2]
        for name, node in (callbacks.items() if isinstance(callbacks, Mapping) else ())
        if isinstance(node, Mapping) and "_target_" in node
    }
    return {key: name for key, name in classes.items() if words in name}


def data_place(evidence: Evidence) -> DataPlace:
    return DataPlace.configured(configured(evidence, "data"), packed=evidence.facts.packed)


def smaller_pack(evidence: Evidence) -> str:
    """The command that packs smaller images, for images of the run's size."""
    return data_place(evidence).pack(evidence.facts.pack_option or "for=224")


def list_processes(names: str) -> str:
    """The command that shows processes. names: as "python (pid 7), java (pid 8)"."""
    pids = re.findall(r"\(pid (\d+)", names)
    return f"ps -o pid,user,pcpu,etime,args -p {','.join(pids)}" if pids else "top -b -n 1 -o %CPU | head -n 17"


def without_waiting(waits: str) -> tuple[str, ...]:
    """For each line that waits, code that does not. waits: as "item at mine.py:7, cpu at mine.py:9"."""
    places = (wait.partition(" at ") for wait in waits.split(", ") if " at " in wait)
    return tuple(
        f"{place}: {_INSTEAD.get(operation, f'keep the result of {operation} on the GPU')}"
        for operation, _, place in places
    )


def _is_in_force(evidence: Evidence, key: str, value: str) -> bool:
    """Whether the key has this value, as configured or as "auto" was resolved."""
    exists, setting = _node(evidence.measurements.config, key)
    name = key.rpartition(".")[2]
    facts = evidence.facts.known()
    values = ([setting] if exists else []) + ([facts[name]] if name in facts else [])
    return value in [_text(setting) for setting in values]


def _node(config: Mapping[str, Any], key: str) -> tuple[bool, Any]:
    """Whether the key exists, and its value."""
    node: Any = config
    for part in key.split("."):
        if not isinstance(node, Mapping) or part not in node:
            return False, None
        node = node[part]
    return True, node


def _text(value: Any) -> str:
    """A value as text of an override."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
