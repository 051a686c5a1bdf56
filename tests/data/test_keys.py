"""Keys after the start of an epoch, and after a resume."""

import pytest

from imagenet_opt.data.keys import BatchKey, BatchKeySampler


def keys(num_batches: int = 5) -> BatchKeySampler:
    return BatchKeySampler(num_batches=num_batches, size_of=lambda epoch: 32)


@pytest.mark.parametrize("step", [0, 3, 5])
@pytest.mark.parametrize("following", [2, 3])
def test_a_resume_continues_its_epoch_and_the_next_pass_is_whole(following: int, step: int) -> None:
    sampler = keys()
    sampler.seek(2, step)
    sampler.set_epoch(2)  # Lightning does so after every start
    assert list(sampler) == [BatchKey(2, step, 32) for step in range(step, 5)]
    assert len(sampler) == 5
    sampler.set_epoch(following)
    assert list(sampler) == [BatchKey(following, step, 32) for step in range(5)]


@pytest.mark.parametrize(("first_parts", "num_parts"), [(1, 1), (3, 1), (2, 2)])
def test_after_gives_the_later_keys(first_parts: int, num_parts: int) -> None:
    sampler = BatchKeySampler(num_batches=5, size_of=lambda epoch: 32, first_parts=first_parts, num_parts=num_parts)
    sampler.seek(2, 1)
    keys = list(sampler)
    assert [key.step for key in keys] == [1] * first_parts + [step for step in (2, 3, 4) for _ in range(num_parts)]
    for number, key in enumerate(keys):
        assert [key.after(i, num_parts) for i in range(len(keys) - number)] == keys[number:]


def test_each_epoch_has_its_image_size() -> None:
    sampler = keys(2)
    sampler.size_of = lambda epoch: 128 + 32 * epoch
    sizes = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        sizes.append([key.image_size for key in sampler])
    assert sizes == [[128, 128], [160, 160], [192, 192]]


def test_keys_keep_the_epoch_of_the_start_of_their_pass() -> None:
    sampler = keys(2)
    sampler.set_epoch(1)
    pass_of_epoch_1 = iter(sampler)
    assert next(pass_of_epoch_1)[:2] == (1, 0)
    sampler.set_epoch(2)
    assert next(pass_of_epoch_1)[:2] == (1, 1)
