"""Numbers that depend only on their place, and look random."""

import numpy as np

from imagenet_opt.data.randomness import key_of, uniform


def test_the_stream_never_changes() -> None:
    """With other numbers, a run that resumes with another version would have other crops."""
    assert uniform(key_of(0, 1), np.array([2]), 2).tolist() == [[0.7911371059697662, 0.9391030520543657]]


def test_a_number_depends_on_its_own_place_only() -> None:
    key = key_of(7, 3)
    whole = uniform(key, np.arange(50), 4)
    assert (uniform(key, np.array([49, 3]), 4) == whole[[49, 3]]).all()
    assert (uniform(key, np.arange(50), 2) == whole[:, :2]).all()
