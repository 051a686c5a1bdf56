"""What rules prescribe, as it is typed: overrides that change something, commands with the run's own folders."""

import os
import re
import shlex
from collections.abc import Mapping
from typing import Any

from imagenet_opt.errors import printable
from imagenet_opt.measure.evidence import Evidence

LOCAL = "/local/disk/packed"
"""Where data is to be laid: a place that the user has to choose."""
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
"""Operation of `measure.host_waits` -> what does not wait."""


def changing(seen: Evidence, *overrides: str) -> tuple[str, ...]:
    """Those that say something else than is in force already."""
    return tuple(one for one in overrides if not _is_in_force(seen, *one.split("=", 1)))


def saves(seen: Evidence) -> tuple[str, ...]:
    """Overrides with which our own checkpoints are written every 15 minutes, or as seldom as they are already."""
    minutes = configured(seen, "checkpoint.every_minutes")
    seldom = isinstance(minutes, int | float) and minutes >= 15
    return changing(seen, "checkpoint.every_n_steps=null", *(() if seldom else ("checkpoint.every_minutes=15",)))


def configured(seen: Evidence, key: str) -> Any:
    """The value of a dotted key; None also where the configuration is not known."""
    return _node(seen.config, key)[1]


def callbacks_like(seen: Evidence, words: str) -> dict[str, str]:
    """Key -> class of each configured callback whose class has these words in its name."""
    found = configured(seen, "callbacks")
    classes = {
        f"callbacks.{name}": str(one["_target_"]).rpartition(".")[2]
        for name, one in (found.items() if isinstance(found, Mapping) else ())
        if isinstance(one, Mapping) and "_target_" in one
    }
    return {key: name for key, name in classes.items() if words in name}


def data_words(seen: Evidence) -> str:
    """data.root=... and, where they are not the usual ones, the folders below, as words of a command."""
    root = configured(seen, "data.root")
    known = isinstance(root, str) and "${" not in root
    words = [f"data.root={root}" if known else "data.root=YOUR_FOLDER"]
    for split in ("train", "val"):
        folder = configured(seen, f"data.{split}_folder") or split
        words += [f"data.{split}_folder={folder}"] * (known and folder != split)
    return " ".join(shlex.quote(printable(word)) for word in words)


def hydrate(seen: Evidence) -> str:
    return f"imagenet-opt hydrate {data_words(seen)}"


def pack(seen: Evidence, *options: str) -> str:
    """To shards on a local disk. Shards themselves are only copied there; they cannot be packed again, the images can.

    options: such as max_side=500, which make images smaller.
    """
    if not seen.fact("packed"):
        return " ".join(["imagenet-opt pack", data_words(seen), f"out={LOCAL}", *options])
    if options:
        return " ".join(["imagenet-opt pack data.root=YOUR_ORIGINALS", f"out={LOCAL}", *options])
    root = configured(seen, "data.root")
    folder = os.path.expanduser(root) if isinstance(root, str) and "${" not in root else "YOUR_FOLDER"
    return f"cp -r {shlex.quote(printable(folder))} {LOCAL}"


def more_cpus(limit: str, num: int) -> tuple[str, ...]:
    """Lines that ask for so many CPUs. limit: which one binds, as `machine.cpu_limits` names it.

    Sources: docker run, --cpus; sbatch(1), --cpus-per-task; taskset(1).
    """
    if limit == "cgroup quota":
        return (f"docker run --cpus={num} ...",)
    slurm = f"#SBATCH --cpus-per-task={num}"
    return (
        (slurm,) if limit == "SLURM_CPUS_PER_TASK" else (f"taskset --cpu-list 0-{num - 1} python train.py ...", slurm)
    )


def look_at(others: str) -> str:
    """The command that shows processes. others: as "python (pid 7), java (pid 8)"."""
    pids = re.findall(r"\(pid (\d+)", others)
    return f"ps -o pid,user,pcpu,etime,args -p {','.join(pids)}" if pids else "top -b -n 1 -o %CPU | head -n 17"


def without_waiting(waits: str) -> tuple[str, ...]:
    """At each line that waits, what to write instead. waits: as "item at mine.py:7, cpu at mine.py:9"."""
    found = (wait.partition(" at ") for wait in waits.split(", ") if " at " in wait)
    return tuple(
        f"{place}: {_INSTEAD.get(operation, f'keep the result of {operation} on the GPU')}"
        for operation, _, place in found
    )


def _is_in_force(seen: Evidence, key: str, value: str) -> bool:
    """As configured, or as "auto" has come out."""
    there, said = _node(seen.config, key)
    name = key.rpartition(".")[2]
    found = [said] if there else []
    found += [known[name] for known in (seen.facts, seen.texts) if name in known]
    return value in [_text(one) for one in found]


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
