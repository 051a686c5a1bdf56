"""Labels judged by a network's answers, drawn from known rates."""

import numpy as np
import pytest

from imagenet_opt.check.labels import consistency, judge_labels

CLASSES = 50


def answers(accuracy: float, per_class: int, folders: np.ndarray, seed: int) -> np.ndarray:
    """Confusion of a network that is right so often, where folder i holds class folders[i]."""
    rng = np.random.default_rng(seed)
    actual = np.zeros((CLASSES, CLASSES), np.int64)
    for folder, truth in enumerate(folders):
        right = rng.random(per_class) < accuracy
        np.add.at(actual[folder], np.where(right, truth, rng.integers(0, CLASSES, per_class)), 1)
    return actual


ORDERED, MOVED = np.arange(CLASSES), np.roll(np.arange(CLASSES), 1)


def test_a_moved_val_with_two_images_a_class_is_permuted() -> None:
    kind, mapping = judge_labels(answers(0.95, 2, ORDERED, 1), answers(0.8, 2, MOVED, 2))
    assert kind == "permuted" and len(mapping) > CLASSES / 2
    assert sum(MOVED[folder] == held for folder, held in mapping) >= len(mapping) - 2


@pytest.mark.parametrize(
    ("train", "val", "kind"),
    [(0.95, 0.75, "right"), (0.95, 0.02, "wrong"), (0.05, 0.05, "unknown"), (0.95, 0.5, "right")],
)
def test_other_ways_to_fail_are_no_permutation(train: float, val: float, kind: str) -> None:
    assert judge_labels(answers(train, 10, ORDERED, 3), answers(val, 10, ORDERED, 4)) == (kind, ())


def test_two_swapped_folders_are_named() -> None:
    swapped = ORDERED.copy()
    swapped[[7, 30]] = 30, 7
    kind, mapping = judge_labels(answers(0.95, 10, ORDERED, 5), answers(0.95, 10, swapped, 6))
    assert kind == "partly" and set(mapping) == {(7, 30), (30, 7)}


def test_one_answer_to_all_of_val_is_no_permutation() -> None:
    actual = judge_labels(answers(0.95, 10, ORDERED, 7), answers(1.0, 10, np.zeros(CLASSES, np.int64), 8))
    assert actual == ("wrong", ())


def test_consistency_is_the_share_of_equal_pairs() -> None:
    actual = np.array([[2, 1, 0], [0, 0, 2]])
    assert consistency(actual) == pytest.approx((1 + 1) / (3 + 1))  # equal pairs over all pairs within a folder
    assert consistency(np.eye(3, dtype=np.int64)) == 0  # no pairs
