"""The plan of a pack: the samples of each shard, stored before the first shard, and compared when a pack resumes."""

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imagenet_opt.data.index.shard_index import FORMAT, PLAN
from imagenet_opt.data.index.split import Split, subset
from imagenet_opt.data.randomness import key_of
from imagenet_opt.data.storage.read_pool import Sample
from imagenet_opt.errors import BadSample, ConfigError
from imagenet_opt.pack.image import PackOptions, prepare
from imagenet_opt.pack.shard_writer import ShardTask
from imagenet_opt.pack.source import READ_TIMEOUT, read_images, sizes_of
from imagenet_opt.pack.target import FolderTarget

_TAR_BYTES = 2048
"""Overhead of tar per sample: two headers, the label, padding."""
_NUM_SIZED, _NUM_SHRUNK = 1000, 100
"""Numbers of files whose sizes are read, and that are packed, to estimate how many samples fill a shard."""


@dataclass(frozen=True)
class PackSplit:
    """A split to pack into `target`. order[i]: number of the image that becomes sample i. is_shuffled: whether the
    samples of each shard are shuffled too, as those of compressed files are read together."""

    target: FolderTarget
    index: Split
    order: NDArray[np.int64]
    options: PackOptions
    read_timeout: float = READ_TIMEOUT
    num_shards: int = 0
    is_shuffled: bool = False

    def task(self, shard: int) -> ShardTask:
        """The task of a shard; the numbers of samples of two shards differ by at most one."""
        first, end = (len(self.order) * i // self.num_shards for i in (shard, shard + 1))
        rows = self.order[first:end]
        if self.is_shuffled:
            rows = np.random.Generator(np.random.Philox(key_of(self.options.seed, shard))).permutation(rows)
        return ShardTask(self.target, shard, subset(self.index, rows), first, self.options, self.read_timeout)


def plan(*splits: PackSplit) -> list[PackSplit]:
    """The splits with their number of shards, from plan.json or from a new plan, which is written.

    Raises ConfigError for a folder with other content, before any plan is written.
    """
    wanted = [_about(split) for split in splits]
    plans = [_read_plan(split.target) for split in splits]
    for split, want, stored in zip(splits, wanted, plans, strict=True):
        _check_same(split.target, stored, want)
    for number, split in enumerate(splits):
        if plans[number] is None:
            plans[number] = wanted[number] | {"num_shards": _fitting_shards(split)}
            split.target.write_json(PLAN, plans[number])
    return [replace(split, num_shards=stored["num_shards"]) for split, stored in zip(splits, plans, strict=True)]


def _about(split: PackSplit) -> dict[str, Any]:
    """Facts that must be equal to resume a pack: options, names and labels in order, sizes of some files."""
    index, sizes = split.index, sizes_of(split.index, _some(split.order, _NUM_SIZED), split.read_timeout)
    digest = hashlib.sha256(json.dumps(index.classes).encode())
    for column in (index.labels, index.names, index.name_offsets, split.order, sizes):
        digest.update(column.tobytes())
    about = {"format": FORMAT, "folder": index.place, "images": len(index), "options": asdict(split.options)}
    return about | {"fingerprint": digest.hexdigest()}


def _some(order: NDArray[np.int64], num: int) -> NDArray[np.int64]:
    """At most `num` entries of the order, evenly spread."""
    return order[np.linspace(0, len(order) - 1, min(num, len(order))).astype(np.int64)]


def _read_plan(target: FolderTarget) -> Any:
    """The content of plan.json; None in an empty target. Raises ConfigError for a target with other content."""
    try:
        plan = json.loads((target.folder / PLAN).read_bytes())
        plan["options"] = asdict(PackOptions()) | plan["options"]  # earlier plans lack some
        if not (_describe(plan) and plan["fingerprint"] and 1 <= plan["num_shards"] <= plan["images"]):
            raise ValueError("the plan is incomplete")
        return plan
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        if target.is_empty():
            return None
        raise ConfigError(
            f"{target.place} is not empty and has no {PLAN} to resume; choose another folder with out=FOLDER, or "
            "empty it"
        ) from error


def _check_same(target: FolderTarget, stored: Any, wanted: dict[str, Any]) -> None:
    if stored is None or all(stored.get(key) == wanted[key] for key in ("format", "options", "fingerprint")):
        return
    is_same = stored["fingerprint"] == wanted["fingerprint"]
    raise ConfigError(
        f"{target.place} holds a pack of {_describe(stored)}, but this command packs {_describe(wanted)}"
        f"{'' if is_same else ', and the images have other names, labels or sizes'}. "
        "Choose another folder with out=FOLDER, use the options of the existing pack, or remove "
        f"{target.place.rpartition('/')[0]} to start over"
    )


def _describe(about: dict[str, Any]) -> str:
    options = ", ".join(f"{key}={value}" for key, value in about["options"].items() if value is not None)
    return f"{about['images']} images in {about['folder']} with {options}"


def _fitting_shards(split: PackSplit) -> int:
    """Number of shards of about shard_mb, estimated from some images."""
    options, sampled = split.options, _some(split.order, _NUM_SIZED)
    sizes = sizes_of(split.index, sampled, split.read_timeout).clip(0)
    if options.max_side is not None or options.reencode == "all":
        images = read_images(subset(split.index, _some(sampled, _NUM_SHRUNK)), split.read_timeout)
        sizes = np.array([_packed_bytes(image, options) for image in images])
    fitting = len(split.order) * (sizes.mean() + _TAR_BYTES) / (options.shard_mb * 1e6)
    return int(np.clip(round(fitting), 1, len(split.order)))


def _packed_bytes(image: Sample, options: PackOptions) -> int:
    try:
        return 0 if isinstance(image, BadSample) else len(prepare(image, options)[0])
    except BadSample:
        return 0
