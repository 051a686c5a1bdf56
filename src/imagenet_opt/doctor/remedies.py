"""Remedies as the user types them: overrides that change something, commands with the run's own folders."""

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from imagenet_opt.doctor.evidence import Evidence
from imagenet_opt.errors import printable

LOCAL = "/local/disk/packed"
"""Stands for the folder on a local disk that the user has to choose."""


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
    """The overrides that change a value in force."""
    return tuple(one for one in overrides if not _is_in_force(evidence, *one.split("=", 1)))


def saves(evidence: Evidence) -> tuple[str, ...]:
    """Overrides that write our own checkpoints every 15 minutes, unless they are written less often already."""
    minutes = configured(evidence, "checkpoint.every_minutes")
    seldom = isinstance(minutes, int | float) and minutes >= 15
    return changing(evidence, "checkpoint.every_n_steps=null", *(() if seldom else ("checkpoint.every_minutes=15",)))


def configured(evidence: Evidence, key: str) -> Any:
    """The value of a dotted key; None also where the configuration is not known."""
    return _node(evidence.measurements.config, key)[1]


def callbacks_like(evidence: Evidence, words: str) -> dict[str, str]:
    """Key -> class of each configured callback whose class has these words in its name."""
    callbacks = configured(evidence, "callbacks")
    classes = {
        f"callbacks.{name}": str(one["_target_"]).rpartition(".")[2]
        for name, one in (callbacks.items() if isinstance(callbacks, Mapping) else ())
        if isinstance(one, Mapping) and "_target_" in one
    }
    return {key: name for key, name in classes.items() if words in name}


def data_place(evidence: Evidence) -> DataPlace:
    return DataPlace.configured(configured(evidence, "data"), packed=evidence.facts.packed)


def look_at(others: str) -> str:
    """The command that shows processes. others: as "python (pid 7), java (pid 8)"."""
    pids = re.findall(r"\(pid (\d+)", others)
    return f"ps -o pid,user,pcpu,etime,args -p {','.join(pids)}" if pids else "top -b -n 1 -o %CPU | head -n 17"


def without_waiting(waits: str) -> tuple[str, ...]:
    """At each line that waits, what to write instead. waits: as "item at mine.py:7, cpu at mine.py:9"."""
    places = (wait.partition(" at ") for wait in waits.split(", ") if " at " in wait)
    return tuple(
        f"{place}: {_INSTEAD.get(operation, f'keep the result of {operation} on the GPU')}"
        for operation, _, place in places
    )


def _is_in_force(evidence: Evidence, key: str, value: str) -> bool:
    """Whether the key has this value, as configured or as "auto" was resolved."""
    there, setting = _node(evidence.measurements.config, key)
    name = key.rpartition(".")[2]
    known = evidence.facts.known()
    values = ([setting] if there else []) + ([known[name]] if name in known else [])
    return value in [_text(one) for one in values]


def _node(config: Mapping[str, Any], key: str) -> tuple[bool, Any]:
    """Whether the key is there, and its value."""
    node: Any = config
    for part in key.split("."):
        if not isinstance(node, Mapping) or part not in node:
            return False, None
        node = node[part]
    return True, node


def _text(value: Any) -> str:
    """As an override says it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
