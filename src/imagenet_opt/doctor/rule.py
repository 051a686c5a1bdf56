"""A rule: when it applies to the evidence, what it says, its remedy, the gain; and the commands of remedies."""

import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from imagenet_opt.config.overrides import key_of, value_of
from imagenet_opt.doctor.evidence import Evidence
from imagenet_opt.errors import printable
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
    gain: as in `Finding`, if the rule fires. unknown: why the rule cannot be checked; "" if it can."""

    name: str
    cause: str = ""
    when: Callable[[Evidence], bool]
    says: Callable[[Evidence], str]
    remedy: str | Callable[[Evidence], str] = ""
    overrides: Callable[[Evidence], Texts] = lambda evidence: ()
    commands: Callable[[Evidence], Texts] = lambda evidence: ()
    gain: Callable[[Evidence], float | None] = lambda evidence: None
    unknown: Callable[[Evidence], str] = lambda evidence: ""

    def look(self, evidence: Evidence, *, applies: bool = False) -> Finding:
        """Check the rule. applies: fire although `when` is not true."""
        if reason := self.unknown(evidence):
            return Finding(self.name, None, reason, environment=not self.cause)
        if not (applies or self.when(evidence)):
            return Finding(self.name, False, self.says(evidence), environment=not self.cause)
        return Finding(
            self.name,
            True,
            self.says(evidence),
            self.remedy if isinstance(self.remedy, str) else self.remedy(evidence),
            changing(evidence, *self.overrides(evidence)),
            self.commands(evidence),
            None if evidence.lacks else self.gain(evidence),
            not self.cause,
        )


def changing(evidence: Evidence, *overrides: str) -> Texts:
    """The overrides that change a value in effect, as configured or as "auto" was resolved."""

    def is_in_effect(key: str, value: str) -> bool:
        resolved = getattr(evidence.setup, key.rpartition(".")[2], "")
        return value in (as_text(evidence.configured(key, "")), as_text(resolved))

    return tuple(word for word in overrides if not is_in_effect(key_of(word), value_of(word)))


def as_text(value: Any) -> str:
    """A value as text of an override."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _data(evidence: Evidence, key: str) -> Any:
    """A configured value of data.*; None if it is missing or an unresolved interpolation."""
    value = evidence.configured(f"data.{key}")
    return None if "${" in str(value) else value


def data_words(evidence: Evidence) -> str:
    """Arguments of a command: data.root=..., and the folders below it that do not have their default names."""
    root = _data(evidence, "root")
    words = [f"data.root={root or 'YOUR_FOLDER'}"]
    for split in ("train", "val") if root else ():
        if (folder := _data(evidence, f"{split}_folder") or split) != split:
            words.append(f"data.{split}_folder={folder}")
    return " ".join(shlex.quote(printable(word)) for word in words)


def hydrate(evidence: Evidence, *changes: str) -> str:
    """The command that reads all data once; of a URL, into the local cache. changes: other settings of the cache,
    such as data.cache_gb=null."""
    same = [f"data.{key}={as_text(_data(evidence, key))}" for key in ("cache_dir", "cache_gb") if _data(evidence, key)]
    changed = set(map(key_of, changes))
    kept = [word for word in same if is_url(_data(evidence, "root")) and key_of(word) not in changed]
    words = [shlex.quote(printable(word)) for word in (*kept, *changes)]
    return " ".join(["imagenet-opt hydrate", data_words(evidence), *words])


def pack(evidence: Evidence, *options: str) -> str:
    """The command that packs the data onto a local disk. Shards are copied; with options, the original images are
    packed again. options: make images smaller, such as for=224."""
    root, packed = _data(evidence, "root"), evidence.setup.packed
    if packed and not options and is_url(root):
        return hydrate(evidence, f"data.cache_dir={LOCAL_CACHE}")
    if packed and not options:
        return f"cp -r {shlex.quote(printable(os.path.expanduser(root or 'YOUR_FOLDER')))} {LOCAL}"
    data = "data.root=YOUR_ORIGINALS" if packed else data_words(evidence)
    return " ".join(["imagenet-opt pack", data, f"out={LOCAL}", *options])


def smaller_pack(evidence: Evidence) -> str:
    """The command that packs images as small as the image size of the run allows."""
    return pack(evidence, "for=224" if evidence.pack is None else evidence.pack.option)
