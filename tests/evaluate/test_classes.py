"""Which logit belongs to which class folder, against timm's lists of ImageNet's variants."""

from pathlib import Path

import pytest
import timm.data
from timm.data import ImageNetInfo

from imagenet_opt.errors import CheckpointMismatch
from imagenet_opt.evaluate.classes import logits_by_number, logits_of

IMAGENET = ImageNetInfo().label_names()


@pytest.mark.parametrize("variant", ["imagenet_a", "imagenet_r"])
def test_folders_of_a_variant_have_timms_indices(variant: str) -> None:
    lists = Path(timm.data.__path__[0]) / "_info"
    synsets = (lists / f"{variant}_synsets.txt").read_text().split()
    indices = [int(number) for number in (lists / f"{variant}_indices.txt").read_text().split()]
    assert logits_of(synsets, IMAGENET, 1000) == indices
    assert len(set(indices)) == 200


def test_folders_that_are_numbers_are_class_numbers() -> None:
    """A folder tree is sorted by name, so 10 comes before 2."""
    folders = sorted(str(number) for number in range(1000))
    assert logits_of(folders, IMAGENET, 1000) == [int(folder) for folder in folders]
    assert logits_of(["0", "10", "2"], None, 12) == [0, 10, 2]


def test_class_numbers_are_those_of_imagenet_in_a_network_that_knows_more_classes() -> None:
    names = ["n00000001", *IMAGENET[::-1], "n99999999"]
    assert logits_of(["3", "999"], names, 1002) == [names.index(IMAGENET[3]), names.index(IMAGENET[999])]
    assert logits_by_number(names, 1002) == [names.index(name) for name in IMAGENET]


def test_numbers_that_a_checkpoint_knows_as_names_are_names() -> None:
    assert logits_of(["0", "10", "2"], ["0", "10", "2"], 3) == [0, 1, 2]


def test_classes_without_names_are_in_order() -> None:
    assert logits_of(["cat", "dog"], None, 2) == [0, 1]
    assert logits_of(["cat", "dog"], ["ant", "cat", "cow", "dog"], 9) == [1, 3]


@pytest.mark.parametrize(
    ("folders", "names", "num", "words"),
    [
        (
            ["cat", "dog"],
            None,
            3,
            "network has 3 classes, the validation images have 2, and the names .* not known; ch",
        ),
        (
            ["cat", "dog"],
            ["dog", "fish"],
            2,
            "does not know 1 of 2 classes of the validation images: cat; choose .*data",
        ),
        (["a", "b", "c", "d"], ["x"], 1, "does not know 4 of 4 classes .*: a, b, c and 1 more; choose .*ckpt="),
        (["7", "10"], None, 10, "folder 10 .* is a class number, and the network has 10 classes, from 0 to 9; choose"),
    ],
)
def test_folders_that_no_logit_belongs_to_are_told(
    folders: list[str], names: list[str] | None, num: int, words: str
) -> None:
    with pytest.raises(CheckpointMismatch, match=words) as told:
        logits_of(folders, names, num)
    assert "\n" not in str(told.value)
