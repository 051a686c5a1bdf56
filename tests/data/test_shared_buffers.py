"""Shared memory is used again, and never while a batch in it is still needed."""

import torch
from torch.utils.data import DataLoader, Dataset

from imagenet_opt.data.shared_buffers import Slots, Ticket


class Stamps(Dataset):
    """Item i is a buffer full of i, in a slot."""

    def __init__(self, slots: Slots) -> None:
        self.slots = slots

    def __len__(self) -> int:
        return 12

    def __getitem__(self, i: int) -> tuple[torch.Tensor, Ticket | None]:
        self.slots.begin(0, i + 1)
        buffer, ticket = self.slots.take(1000)
        buffer.fill_(i)
        self.slots.count()
        return buffer, ticket


def loaded(slots: Slots) -> "DataLoader[tuple[torch.Tensor, Ticket | None]]":
    return DataLoader(Stamps(slots), batch_size=None, num_workers=1, prefetch_factor=2)


def test_what_is_given_back_is_used_again() -> None:
    slots = Slots(num_workers=1, depth=4)
    used = set()
    for i, (buffer, ticket) in enumerate(loaded(slots)):
        assert (buffer == i).all()
        assert ticket is not None
        used.add(ticket.slot)
        slots.give_back(ticket)
    assert len(used) <= 3  # two ahead and the one in hand
    assert slots.holding.tolist() == [[0, 0, 0, 0]]
    assert slots.made.tolist() == [12]


def test_what_is_kept_is_not_written_over() -> None:
    slots = Slots(num_workers=1, depth=3)
    kept = list(loaded(slots))
    assert [int(buffer[0]) for buffer, _ in kept] == list(range(12))
    assert [ticket is None for _, ticket in kept] == [False] * 3 + [True] * 9


def test_a_late_return_does_not_free_a_later_batch() -> None:
    slots = Slots(num_workers=1, depth=2)
    slots.holding[0, 1] = 7
    slots.give_back(Ticket(0, 1, 6))
    assert int(slots.holding[0, 1]) == 7
    slots.give_back(Ticket(0, 1, 7))
    slots.give_back(None)
    assert int(slots.holding[0, 1]) == 0


def test_an_epoch_begun_anew_frees_what_was_never_fetched() -> None:
    slots = Slots(num_workers=1, depth=2)
    slots.begin(0, 1)
    slots.holding[0] = 5
    slots.begin(0, 2)
    assert slots.holding.tolist() == [[5, 5]]
    slots.begin(1, 0)
    assert slots.holding.tolist() == [[0, 0]]
    slots.holding[0] = 6
    slots.begin(1, 0)
    assert slots.holding.tolist() == [[0, 0]]


def test_in_the_process_that_trains_memory_is_ordinary() -> None:
    buffer, ticket = Slots(num_workers=0, depth=1).take(10)
    assert (ticket, buffer.dtype, buffer.is_shared()) == (None, torch.uint8, False)
