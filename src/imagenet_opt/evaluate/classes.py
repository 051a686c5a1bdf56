"""Which logit of a network belongs to which class folder."""

from collections.abc import Sequence

from timm.data import ImageNetInfo

from imagenet_opt.errors import CheckpointMismatch, printable

_REMEDY = "choose the network's training data set (data.root, data.val_folder), or another ckpt="


def logits_of(folders: Sequence[str], names: Sequence[str] | None, num_logits: int) -> list[int]:
    """The number of the logit of each class folder; there may be fewer folders than logits.

    names: of the network's classes, in the order of its logits; None if unknown. If some folder is not in `names` and
    all folders are whole numbers, the folders are class numbers, as in ImageNet-V2: of ImageNet's 1000 classes if the
    WordNet ids of all are in `names`, else of the network's classes. Raises CheckpointMismatch for other folders.
    """
    known = {name: number for number, name in enumerate(names or ())}
    if known.keys() >= set(folders):
        return [known[folder] for folder in folders]
    if all(folder.isdecimal() for folder in folders):
        imagenet, largest = ImageNetInfo().label_names(), max(map(int, folders))
        logits = [known[name] for name in imagenet] if known.keys() >= set(imagenet) else list(range(num_logits))
        if largest < len(logits):
            return [logits[int(folder)] for folder in folders]
        raise CheckpointMismatch(
            f"the folder {largest} of the validation images is a class number, and the network has {len(logits)} "
            f"classes, from 0 to {len(logits) - 1}; {_REMEDY}"
        )
    if names is not None:
        foreign = [printable(folder) for folder in folders if folder not in known]
        more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
        raise CheckpointMismatch(
            f"the network does not know {len(foreign)} of {len(folders)} classes of the validation images: "
            f"{', '.join(foreign[:3])}{more}; {_REMEDY}"
        )
    if len(folders) != num_logits:
        raise CheckpointMismatch(
            f"the network has {num_logits} classes, the validation images have {len(folders)}, and the names of the "
            f"network's classes are not known; {_REMEDY}"
        )
    return list(range(num_logits))
