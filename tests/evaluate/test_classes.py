"""The logit of each class folder, against timm's lists of ImageNet's variants."""

from pathlib import Path

import pytest
import timm.data
from timm.data import ImageNetInfo

from imagenet_opt.errors import CheckpointMismatch
from imagenet_opt.evaluate.network import logits_of

IMAGENET = ImageNetInfo().label_names()
MORE_CLASSES = ["n00000001", *IMAGENET[::-1], "n99999999"]
NUMBERS_BY_NAME = sorted(map(str, range(1000)))  # as folders are sorted: 10 before 2


@pytest.mark.parametrize("variant", ["imagenet_a", "imagenet_r"])
def test_folders_of_a_variant_have_timms_indices(variant: str) -> None:
    lists = Path(timm.data.__path__[0]) / "_info"
    synsets = (lists / f"{variant}_synsets.txt").read_text().split()
    indices = [int(number) for number in (lists / f"{variant}_indices.txt").read_text().split()]
    assert logits_of(synsets, IMAGENET, 1000) == indices
    assert len(set(indices)) == 200


@pytest.mark.parametrize(
    ("folders", "names", "num", "logits"),
    [
        (NUMBERS_BY_NAME, IMAGENET, 1000, [int(folder) for folder in NUMBERS_BY_NAME]),
        (["3", "999"], MORE_CLASSES, 1002, [MORE_CLASSES.index(IMAGENET[3]), MORE_CLASSES.index(IMAGENET[999])]),
        (["0", "10", "2"], ["0", "10", "2"], 3, [0, 1, 2]),  # numbers that the network knows as names
        (["cat", "dog"], None, 2, [0, 1]),
        (["cat", "dog"], ["ant", "cat", "cow", "dog"], 9, [1, 3]),
    ],
)
def test_folders_are_names_or_class_numbers(
    folders: list[str], names: list[str] | None, num: int, logits: list[int]
) -> None:
    assert logits_of(folders, names, num) == logits


@pytest.mark.parametrize(
    ("folders", "names", "num", "words"),
    [
        ("cat dog", None, 3, "3 classes, the validation images have 2"),
        ("cat dog", ["dog", "fish"], 2, "1 of 2 classes .*: cat"),
        ("7 10", None, 10, "folder 10 .* 10 classes"),
    ],
)
def test_a_folder_without_a_logit_is_refused(folders: str, names: list[str] | None, num: int, words: str) -> None:
    with pytest.raises(CheckpointMismatch, match=words) as caught:
        logits_of(folders.split(), names, num)
    assert "\n" not in str(caught.value)
