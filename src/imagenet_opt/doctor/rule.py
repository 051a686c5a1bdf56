"""A rule: when it applies to the evidence, what it says, its remedy, the gain; and remedies that the user can type."""

import os
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from imagenet_opt.config.overrides import key_of, value_of
from imagenet_opt.doctor.evidence import READS, Evidence
from imagenet_opt.errors import printable
from imagenet_opt.machine import GIB
from imagenet_opt.object_storage import is_url

Texts = tuple[str, ...]
LOCAL = "/local/disk/packed"
LOCAL_CACHE = "/local/nvme/cache"
"""Placeholders for folders on a local disk that the user must choose."""


@dataclass(frozen=True)
class Finding:
    """The result of one rule.

    fired: whether the rule applies; None if the rule could not be checked, for the reason in `evidence`. evidence: a
    sentence with the numbers. overrides: the remedy as overrides of the configuration, without those that are in effect
    already. commands: shell commands for the user or an administrator. gain: predicted rate divided by the measured
    rate; None if not predictable. environment: whether the rule checks the machine and the configuration.
    """

    rule: str
    fired: bool | None
    evidence: str
    remedy: str = ""
    overrides: Texts = ()
    commands: Texts = ()
    gain: float | None = None
    environment: bool = False


@dataclass(frozen=True, kw_only=True)
class Rule:
    """cause: first words of the verdict and the cause in a few words, "Storage-bound: storage answers late"; "" for
    a check of the environment. when: whether the rule applies. says: the evidence. remedy, overrides, commands,
    gain: as in `Finding`, if the rule fires. unknown: why the rule cannot be checked; "" if it can. needs: stages
    whose rates the rule reads, named as in `Evidence.stage`; None: all of READS for a cause, else none. unless: the
    rule does not fire if one of these earlier rules fired. in_run: whether the cause appears only in the full run,
    which is then slower than its stages allow."""

    name: str
    cause: str = ""
    when: Callable[[Evidence], bool]
    says: Callable[[Evidence], str]
    remedy: str | Callable[[Evidence], str] = ""
    overrides: Callable[[Evidence], Texts] = lambda evidence: ()
    commands: Callable[[Evidence], Texts] = lambda evidence: ()
    gain: Callable[[Evidence], float | None] = lambda evidence: None
    unknown: Callable[[Evidence], str] = lambda evidence: ""
    needs: Texts | None = None
    unless: Texts = ()
    in_run: bool = False

    def look(self, evidence: Evidence, fired: Collection[str] = (), *, slowest: str = "") -> Finding:
        """Check the rule. fired: earlier rules that fired. slowest: the rule that applies although no `when` is true.
        If a needed ceiling is missing, `Finding.fired` is None."""
        needs = (READS if self.cause else ()) if self.needs is None else self.needs
        missing = ", ".join(evidence.stages[stage] for stage in evidence.lacks(needs))
        if reason := f"not measured: {missing}" if missing else self.unknown(evidence):
            return Finding(self.name, None, reason, environment=not self.cause)
        finding = Finding(self.name, False, self.says(evidence), environment=not self.cause)
        applies = self.name == slowest or (self.when(evidence) and set(self.unless).isdisjoint(fired))
        if not applies:
            return finding
        return replace(
            finding,
            fired=True,
            remedy=self.remedy if isinstance(self.remedy, str) else self.remedy(evidence),
            overrides=changing(evidence, *self.overrides(evidence)),
            commands=self.commands(evidence),
            gain=None if evidence.lacks(READS) else self.gain(evidence),
        )


def changing(evidence: Evidence, *overrides: str) -> Texts:
    """The overrides that change a value in effect, as configured or as "auto" was resolved."""
    return tuple(word for word in overrides if not _is_in_effect(evidence, key_of(word), value_of(word)))


def _is_in_effect(evidence: Evidence, key: str, value: str) -> bool:
    resolved = getattr(evidence.setup, key.rpartition(".")[2], "")
    return value in (as_text(evidence.configured(key, "")), as_text(resolved))


def as_text(value: Any) -> str:
    """A value as text of an override."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


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
        same = [f"{key}={as_text(value)}" for key, value in self.cache.items() if key not in changed]
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


def more_memory(*, shared: bool) -> str:
    """The remedy for loaders without room for their batches. shared: in /dev/shm, of which Docker gives 64 MiB (docker
    run, --shm-size)."""
    if shared:
        container = "start the container with a larger --shm-size, or with --ipc=host"
        return f"{container}; in Kubernetes mount an emptyDir with medium: Memory at /dev/shm"
    return "request more memory (sbatch --mem, docker run --memory), or use fewer workers or batches ahead"


def more_memory_commands(num_bytes: float, *, shared: bool) -> Texts:
    gib = int(num_bytes / GIB) + 1
    if shared:
        return f"docker run --shm-size={gib}g ...", f"sudo mount -o remount,size={gib}G /dev/shm"
    return (f"sbatch --mem={gib}G ...",)


def sets_cpus(limit: str, *, in_slurm: bool) -> str:
    """The program that sets a limit of CPUs; SLURM can also bind a job to its CPUs by affinity. limit: as
    `machine.cpu_limits` names it."""
    if limit == "cgroup quota":
        return "docker"
    return "sbatch" if limit == "SLURM_CPUS_PER_TASK" or (limit == "affinity" and in_slurm) else "taskset"


def more_cpus(limit: str, num: int, *, in_slurm: bool) -> str:
    """The command for `num` CPUs. limit: the limit to raise.

    Sources: sbatch(1), --cpus-per-task; docker run, --cpus; taskset(1), which numbers CPUs from 0.
    """
    commands = {
        "docker": f"docker run --cpus={num} ...",
        "sbatch": f"sbatch --cpus-per-task={num} ...",
        "taskset": f"taskset --cpu-list 0-{num - 1} python train.py ...",
    }
    return commands[sets_cpus(limit, in_slurm=in_slurm)]


def saves(evidence: Evidence) -> Texts:
    """Overrides that write checkpoints every 15 minutes, if the run writes them more often."""
    minutes = evidence.configured("callbacks.checkpoint.every_minutes")
    seldom = isinstance(minutes, int | float) and minutes >= 15
    return ("callbacks.checkpoint.every_n_steps=null", *(() if seldom else ("callbacks.checkpoint.every_minutes=15",)))


def callbacks_like(evidence: Evidence, words: str) -> dict[str, str]:
    """Key -> class of each configured callback whose class name contains `words`."""
    classes = {
        f"callbacks.{name}": str(node["_target_"]).rpartition(".")[2]
        for name, node in evidence.configured("callbacks", {}).items()
        if isinstance(node, Mapping) and "_target_" in node
    }
    return {key: name for key, name in classes.items() if words in name}


def data_place(evidence: Evidence) -> DataPlace:
    return DataPlace.configured(evidence.configured("data"), packed=evidence.setup.packed)


def smaller_pack(evidence: Evidence) -> str:
    """The command that packs images as small as the image size of the run allows."""
    return data_place(evidence).pack("for=224" if evidence.pack is None else evidence.pack.option)


def list_processes(others: Iterable[str]) -> str:
    """The command that shows processes; without a pid, the busiest. others: each as "python (pid 7)"."""
    pids = re.findall(r"\(pid (\d+)", " ".join(others))
    return f"ps -o pid,user,pcpu,etime,args -p {','.join(pids)}" if pids else "top -b -n 1 -o %CPU | head -n 17"
