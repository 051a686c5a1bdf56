"""Which samples belong to which shard, written down before the first one, and whether a folder is of the same pack."""

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imagenet_opt.data.index.shard_index import FORMAT, PLAN, shard_name
from imagenet_opt.errors import BadSample, ConfigError
from imagenet_opt.pack.image import prepare
from imagenet_opt.pack.processes import ShardTask
from imagenet_opt.pack.shard_writer import write_json
from imagenet_opt.pack.source import Source

_TAR_BYTES = 2048
"""What tar adds to a sample: two headers, the label, padding."""
_NUM_ASKED, _NUM_TRIED = 1000, 100
"""How many files are asked for their size, and how many of those are made smaller, to tell how many fill a shard."""


@dataclass(frozen=True)
class PackOptions:
    """max_side: pixels of the longer side, None to keep all bytes; quality: of the JPEGs that were made smaller.

    shard_mb: about so many 10^6 bytes a shard. seed: of the order in which training images are laid down.
    """

    max_side: int | None = None
    quality: int = 90
    shard_mb: float = 256.0
    seed: int = 0


@dataclass(frozen=True)
class PackSplit:
    """One split on its way into `folder`. order[i]: which file of the source is sample i."""

    folder: Path
    source: Source
    order: NDArray[np.int64]
    options: PackOptions
    num_shards: int = 0

    def task(self, shard: int) -> ShardTask:
        """Each shard gets as many samples as the others, but for one."""
        first, end = (len(self.order) * i // self.num_shards for i in (shard, shard + 1))
        path, source, options = self.folder / shard_name(shard), self.source.take(self.order[first:end]), self.options
        return ShardTask(path, self.part(shard), source, first, options.max_side, options.quality)

    def part(self, shard: int) -> Path:
        """A finished shard's part of the index, until the index is written."""
        return self.folder / "parts" / f"{shard_name(shard)}.json"


def plan(*splits: PackSplit) -> list[PackSplit]:
    """With the number of shards that their plan.json says, or else is to say.

    Raises ConfigError for a folder that holds anything else, before any is written.
    """
    wanted = [_about(split) for split in splits]
    found = [_read_plan(split.folder) for split in splits]
    for split, want, old in zip(splits, wanted, found, strict=True):
        _check_same(split.folder, old, want)
    planned = []
    for split, want, old in zip(splits, wanted, found, strict=True):
        if old is None:
            old = want | {"num_shards": _fitting_shards(split)}
            write_json(split.folder / PLAN, old)
        planned.append(replace(split, num_shards=old["num_shards"]))
    return planned


def _about(split: PackSplit) -> dict[str, Any]:
    """What a pack must have in common to go on: options, names and labels in order, sizes of some files."""
    files, options = split.source.files, asdict(split.options)
    if split.options.max_side is None:
        del options["quality"]
    sizes = split.source.num_bytes(_some(split.order, _NUM_ASKED))
    digest = hashlib.sha256(json.dumps(files.classes).encode())
    for column in (files.labels, files.names, files.name_offsets, split.order, sizes):
        digest.update(column.tobytes())
    about = {"format": FORMAT, "folder": str(files.folder), "images": len(files), "options": options}
    return about | {"fingerprint": digest.hexdigest()}


def _some(order: NDArray[np.int64], num: int) -> NDArray[np.int64]:
    """At most `num` of them, evenly spread."""
    return order[np.linspace(0, len(order) - 1, min(num, len(order))).astype(np.int64)]


def _read_plan(folder: Path) -> Any:
    """None in an empty folder. Raises ConfigError where something else is."""
    try:
        plan = json.loads((folder / PLAN).read_bytes())
        if not (_describe(plan) and plan["fingerprint"] and 1 <= plan["num_shards"] <= plan["images"]):
            raise ValueError("all that is used of it must be there")
        return plan
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        if not any(folder.iterdir()):
            return None
        raise ConfigError(
            f"{folder} holds something, but no {PLAN} of a pack; choose another folder with out=FOLDER, or empty it"
        ) from error


def _check_same(folder: Path, old: Any, wanted: dict[str, Any]) -> None:
    if old is None or all(old.get(key) == wanted[key] for key in ("format", "options", "fingerprint")):
        return
    raise ConfigError(
        f"{folder} holds a pack of {_describe(old)}; asked for is one of {_describe(wanted)}"
        f"{', and the images have other names, labels or sizes' * (old['fingerprint'] != wanted['fingerprint'])}. "
        f"Choose another folder with out=FOLDER, use the options of that pack, or remove {folder.parent} to pack again"
    )


def _describe(about: dict[str, Any]) -> str:
    options = ", ".join(f"{key}={value}" for key, value in about["options"].items() if value is not None)
    return f"{about['images']} images in {about['folder']} with {options}"


def _fitting_shards(split: PackSplit) -> int:
    """How many shards of about shard_mb there will be, judged by some images."""
    options, asked = split.options, _some(split.order, _NUM_ASKED)
    sizes = split.source.num_bytes(asked).clip(0)
    if options.max_side is not None:
        sizes = np.array([_packed_bytes(split, i) for i in _some(asked, _NUM_TRIED).tolist()])
    fitting = len(split.order) * (sizes.mean() + _TAR_BYTES) / (options.shard_mb * 1e6)
    return int(np.clip(round(fitting), 1, len(split.order)))


def _packed_bytes(split: PackSplit, i: int) -> int:
    try:
        encoded, options = split.source.read(i), split.options
        return len(prepare(encoded, max_side=options.max_side, quality=options.quality)[0])
    except (OSError, BadSample):
        return 0
