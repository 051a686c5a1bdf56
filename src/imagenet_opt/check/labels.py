"""Whether a trained network agrees with the folders of val as it does with those of train."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from imagenet_opt.check.confusion import Confusion, Labels, class_accuracies, judge_labels
from imagenet_opt.check.result import Verdict
from imagenet_opt.data.index.folder_index import FileIndex
from imagenet_opt.data.index.shard_index import ShardIndex
from imagenet_opt.data.index.subset import subset
from imagenet_opt.data.loader import Seat, eval_loader
from imagenet_opt.data.options import LoaderOptions
from imagenet_opt.errors import CheckpointMismatch
from imagenet_opt.model.saved_network import open_network

Index = FileIndex | ShardIndex
_TOLD = 3
_WAY_OUT = (
    "sort validation images into folders again, from the list that came with them (imagenet-opt pack val_labels=FILE)"
)


@dataclass(frozen=True)
class Asked:
    """A split and those of its samples that the network is shown."""

    index: Index
    rows: NDArray[np.int64]


def check_labels(
    ckpt: Path, train: Asked, val: Asked, loading: LoaderOptions, on_progress: Callable[[int, int], None]
) -> tuple[Verdict, dict[str, Any]]:
    """The verdict, and accuracies for a file. Raises CheckpointError, also for a network of fewer classes."""
    network, config, _ = open_network(ckpt)
    classes, answers = train.index.classes, config["num_classes"]
    if answers < len(classes):
        raise CheckpointMismatch(f"{ckpt} tells {answers} classes, the data has {len(classes)}; choose another ckpt=")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    size = config["image_size"]
    how = replace(loading, image_size=size, val_image_size=size, on_bad_sample="skip", max_bad_fraction=1.0)
    done, total = 0, len(train.rows) + len(val.rows)

    def advance(num: int) -> None:
        nonlocal done
        on_progress(done := done + num, total)

    network.to(device)
    confusions = [_confusion(network, asked, how, device, answers, advance) for asked in (train, val)]
    found = judge_labels(*confusions)
    return _verdict(found, classes, val), _facts(found, confusions, classes)


def _confusion(
    network: torch.nn.Module,
    asked: Asked,
    how: LoaderOptions,
    device: torch.device,
    answers: int,
    advance: Callable[[int], None],
) -> Confusion:
    found = np.zeros((len(asked.index.classes), answers), np.int64)
    how = replace(how, batch_size=min(how.batch_size, len(asked.rows)))
    loader = eval_loader(subset(asked.index, asked.rows), how, Seat(device=device))
    try:
        for batch in loader:
            with torch.inference_mode():
                chosen = network(batch.images).argmax(1)[batch.valid]
            np.add.at(found, (batch.labels[batch.valid].cpu().numpy(), chosen.cpu().numpy()), 1)
            advance(int(batch.valid.sum()))
    finally:
        loader.close()
    return found


def _verdict(found: Labels, classes: tuple[str, ...], val: Asked) -> Verdict:
    check = "labels"
    train_percent, val_percent = 100 * found.train_accuracy, 100 * found.val_accuracy
    shares = f"the network is right on {train_percent:.1f} % of train and {val_percent:.1f} % of val"
    mapping = tuple(f"{val.index.folder / classes[a]} seems to hold {_class(classes, b)}" for a, b in found.mapping)
    told = "; ".join(mapping[:_TOLD])
    if found.kind == "permuted":
        same = f"two images of one folder of val get the same answer in {100 * found.val_consistency:.0f} % of cases"
        text = f"{shares}, yet {same}: the folders hold other classes than their names say. {told}. {_WAY_OUT}"
        return Verdict(check, "error", text, mapping)
    if found.kind == "partly":
        text = f"{shares}; {len(mapping)} folders of val seem to hold another class: {told}. Look at their images"
        return Verdict(check, "warning", text, mapping)
    if found.kind == "wrong":
        near_chance = found.val_accuracy <= 2 / len(classes)
        text = f"{shares}: labels of val are wrong file by file, its images are spoiled, or the network is overfitted"
        return Verdict(check, "error" if near_chance else "warning", text)
    if found.kind == "unknown":
        text = f"{shares}: the network is not accurate enough to judge labels; choose a ckpt= that was trained longer"
        return Verdict(check, "info", text)
    return Verdict(check, "ok", shares)


def _class(classes: tuple[str, ...], answer: int) -> str:
    return classes[answer] if answer < len(classes) else f"class {answer}, which the data does not have"


def _facts(found: Labels, confusions: list[Confusion], classes: tuple[str, ...]) -> dict[str, Any]:
    train, val = ([None if np.isnan(one) else float(one) for one in class_accuracies(c)] for c in confusions)
    return {
        "kind": found.kind,
        "train_accuracy": found.train_accuracy,
        "val_accuracy": found.val_accuracy,
        "train_consistency": found.train_consistency,
        "val_consistency": found.val_consistency,
        "classes": {name: {"train": a, "val": b} for name, a, b in zip(classes, train, val, strict=True)},
    }
