"""The place in the run, as a resume sets it and an epoch's start moves it."""

import pytest

from imagenet_opt.data.keys import BatchKey, BatchKeySampler


def keys(num_batches: int = 5) -> BatchKeySampler:
    return BatchKeySampler(num_batches=num_batches, size_of=lambda epoch: 32)


def test_an_epoch_has_all_its_steps_and_the_next_one_too() -> None:
    sampler = keys()
    for epoch in (0, 1):
        sampler.set_epoch(epoch)
        assert list(sampler) == [BatchKey(epoch, step, 32) for step in range(5)]


@pytest.mark.parametrize("following", [2, 3])
def test_a_resume_goes_on_inside_its_epoch_and_the_next_pass_is_whole(following: int) -> None:
    sampler = keys()
    sampler.seek(2, 3)
    sampler.set_epoch(2)  # as Lightning does after every start
    assert [key[:2] for key in sampler] == [(2, 3), (2, 4)]
    assert len(sampler) == 5
    sampler.set_epoch(following)
    assert [key[:2] for key in sampler] == [(following, step) for step in range(5)]


@pytest.mark.parametrize(("first_parts", "num_parts"), [(1, 1), (3, 1), (2, 2)])
def test_later_keys_are_foreseen(first_parts: int, num_parts: int) -> None:
    sampler = BatchKeySampler(num_batches=5, size_of=lambda epoch: 32, first_parts=first_parts, num_parts=num_parts)
    sampler.seek(2, 1)
    keys = list(sampler)
    assert [key.step for key in keys] == [1] * first_parts + [step for step in (2, 3, 4) for _ in range(num_parts)]
    for number, key in enumerate(keys):
        assert [key.after(i, num_parts) for i in range(len(keys) - number)] == keys[number:]


def test_a_resume_at_the_end_of_an_epoch_has_nothing_left_of_it() -> None:
    sampler = keys()
    sampler.seek(1, 5)
    assert list(sampler) == []


def test_the_size_is_asked_for_at_each_epoch() -> None:
    sampler = keys(2)
    sampler.size_of = lambda epoch: 128 + 32 * epoch
    sizes = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        sizes.append([key.image_size for key in sampler])
    assert sizes == [[128, 128], [160, 160], [192, 192]]


def test_keys_keep_the_epoch_that_was_set_when_their_pass_began() -> None:
    sampler = keys(2)
    sampler.set_epoch(1)
    pass_of_epoch_1 = iter(sampler)
    assert next(pass_of_epoch_1)[:2] == (1, 0)
    sampler.set_epoch(2)
    assert next(pass_of_epoch_1)[:2] == (1, 1)
