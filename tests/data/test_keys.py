"""Keys after the start of an epoch, and after a resume."""

import pytest

from imagenet_opt.data.keys import BatchKeySampler


@pytest.mark.parametrize(("first_parts", "num_parts"), [(1, 1), (3, 1), (2, 2)])
def test_after_gives_the_later_keys(first_parts: int, num_parts: int) -> None:
    sampler = BatchKeySampler(num_batches=5, size_of=lambda epoch: 32, first_parts=first_parts, num_parts=num_parts)
    sampler.seek(2, 1)
    keys = list(sampler)
    assert [key.step for key in keys] == [1] * first_parts + [step for step in (2, 3, 4) for _ in range(num_parts)]
    for number, key in enumerate(keys):
        assert [key.after(i, num_parts) for i in range(len(keys) - number)] == keys[number:]
