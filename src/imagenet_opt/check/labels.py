"""Checks the labels of val with a trained network."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from imagenet_opt.check.confusion import Confusion, Labels, class_accuracies, judge_labels
from imagenet_opt.check.result import CheckResult, Level
from imagenet_opt.data.index.folder_index import FileIndex
from imagenet_opt.data.index.shard_index import ShardIndex
from imagenet_opt.data.index.subset import subset
from imagenet_opt.data.loader import RankInfo, eval_loader
from imagenet_opt.data.options import LoaderOptions
from imagenet_opt.evaluate.classes import logits_of
from imagenet_opt.evaluate.network import Network
from imagenet_opt.model.saved_network import on_device

Index = FileIndex | ShardIndex
_MOST_NAMED = 3
_REMEDY = (
    "sort the validation images into class folders again, by the official list of labels "
    "(imagenet-opt pack val_labels=FILE)"
)


@dataclass(frozen=True)
class Selection:
    """A split, and the rows of the samples that the network classifies."""

    index: Index
    rows: NDArray[np.int64]


def check_labels(
    network: Network, train: Selection, val: Selection, loading: LoaderOptions, on_progress: Callable[[int, int], None]
) -> tuple[CheckResult, dict[str, Any]]:
    """The verdict, and the accuracies for --json. loading: of images as the network's own run validated with them.

    Raises CheckpointMismatch for a network that does not know the classes.
    """
    classes = train.index.classes
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    logits = torch.tensor(logits_of(classes, network.classes, network.num_classes), device=device)
    options = replace(loading, on_bad_sample="skip", max_bad_fraction=1.0)
    done, total = 0, len(train.rows) + len(val.rows)

    def advance(num: int) -> None:
        nonlocal done
        on_progress(done := done + num, total)

    on_device(network.net, device)
    confusions = [_confusion(network.net, selection, options, logits, advance) for selection in (train, val)]
    labels = judge_labels(*confusions)
    facts = asdict(labels)
    del facts["mapping"]
    accuracies = zip(classes, *map(class_accuracies, confusions), strict=True)
    facts["classes"] = {name: {"train": of_train, "val": of_val} for name, of_train, of_val in accuracies}
    return _verdict(labels, classes, val), facts


def _confusion(
    network: torch.nn.Module,
    selection: Selection,
    options: LoaderOptions,
    logits: torch.Tensor,
    advance: Callable[[int], None],
) -> Confusion:
    """logits: the number of the logit of each class."""
    confusion = np.zeros((len(logits), len(logits)), np.int64)
    options = replace(options, batch_size=min(options.batch_size, len(selection.rows)))
    loader = eval_loader(subset(selection.index, selection.rows), options, RankInfo(device=logits.device))
    try:
        for batch in loader:
            with torch.inference_mode():
                chosen = network(batch.images)[:, logits].argmax(1)[batch.valid]
            np.add.at(confusion, (batch.labels[batch.valid].cpu().numpy(), chosen.cpu().numpy()), 1)
            advance(int(batch.valid.sum()))
    finally:
        loader.close()
    return confusion


def _verdict(labels: Labels, classes: tuple[str, ...], val: Selection) -> CheckResult:
    train_percent, val_percent = 100 * labels.train_accuracy, 100 * labels.val_accuracy
    shares = f"the network is right on {train_percent:.1f} % of train and {val_percent:.1f} % of val"
    mapping = tuple(f"{val.index.place}/{classes[a]} seems to hold {classes[b]}" for a, b in labels.mapping)
    first = "; ".join(mapping[:_MOST_NAMED])
    if labels.kind == "permuted":
        same = (
            f"two images of one folder of val get the same prediction in {100 * labels.val_consistency:.0f} % of cases"
        )
        text = f"{shares}, yet {same}: the folders hold other classes than their names say. {first}. {_REMEDY}"
        return CheckResult("labels", "error", text, mapping)
    if labels.kind == "partly":
        text = f"{shares}; {len(mapping)} folders of val seem to hold another class: {first}. Look at their images"
        return CheckResult("labels", "warning", text, mapping)
    if labels.kind == "wrong":
        level: Level = "error" if labels.val_accuracy <= 2 / len(classes) else "warning"
        text = f"{shares}: single files of val have wrong labels, val is damaged, or the network is overfitted"
        return CheckResult("labels", level, text)
    if labels.kind == "unknown":
        text = f"{shares}: the network has learned too little to judge labels; choose a ckpt= with more training"
        return CheckResult("labels", "info", text)
    return CheckResult("labels", "ok", shares)
