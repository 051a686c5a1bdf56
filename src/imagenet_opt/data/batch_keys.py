"""Batch keys: the sampler yields them, workers receive them, and a resumed run starts at a given key."""

import operator
from collections.abc import Callable, Iterator
from dataclasses import InitVar, dataclass
from typing import Any, NamedTuple

from torch.utils.data import Sampler

from imagenet_opt.errors import ConfigError


class BatchKey(NamedTuple):
    """Identifies one batch of the run, or one of the `num_parts` parts in which workers hand over a batch.

    `step` counts batches within the epoch; `image_size` is in pixels.
    """

    epoch: int
    step: int
    image_size: int
    part: int = 0
    num_parts: int = 1

    def after(self, num_keys: int, parts: int) -> "BatchKey":
        """The key that comes `num_keys` keys later, if all later batches have `parts` parts."""
        rest = self.num_parts - self.part
        if num_keys < rest:
            return self._replace(part=self.part + num_keys)
        steps, part = divmod(num_keys - rest, parts)
        return self._replace(step=self.step + 1 + steps, part=part, num_parts=parts)


@dataclass(kw_only=True, eq=False)
class BatchKeySampler(Sampler[BatchKey]):
    """Yields the keys of one epoch, from any step: `num_parts` keys per batch, and `first_parts` keys for the first
    batch, which all workers make together. The length is in batches.

    size_of: epoch -> pixels of a side of its images, at first always `image_size`; may be replaced before the first
    batch of an epoch. on_first_key: called before the first key of an epoch, when all workers have finished the earlier
    epochs. position: epoch, and the batches of this epoch that the loader has delivered, which are fewer than the keys
    that workers have received. first_step: where the next iteration starts; None if nobody has chosen a place since the
    last iteration began.
    """

    num_batches: int
    image_size: InitVar[int]
    num_parts: int = 1
    first_parts: int = 1
    on_first_key: Callable[[], None] = lambda: None

    def __post_init__(self, image_size: int) -> None:
        self.size_of: Callable[[int], int] = lambda epoch: image_size
        self.first_step: int | None
        self.seek(0, 0)

    def set_epoch(self, epoch: int) -> None:
        """Start `epoch` at its first batch, unless `seek` has chosen a step in the same epoch."""
        if epoch != self.epoch or self.first_step is None:
            self.seek(epoch, 0)

    def seek(self, epoch: Any, step: Any) -> None:
        """Continue in `epoch` after `step` batches. Raises ConfigError for another place than one in an epoch."""
        try:
            place = operator.index(epoch), operator.index(step)  # so that states have no numbers of numpy or torch
        except TypeError:
            place = -1, -1
        if place[0] < 0 or not 0 <= place[1] <= self.num_batches:
            raise ConfigError(
                f"epoch={epoch!r}, step={step!r} is no place in epochs of {self.num_batches} batches; both are whole "
                "numbers from 0"
            )
        self.epoch, self.first_step = self.position = place

    def go_on(self) -> None:
        """Unless a place is chosen, choose the first batch of the next epoch if the loader has delivered this epoch to
        its end, and otherwise of the same epoch."""
        if self.first_step is None:
            epoch, step = self.position
            self.seek(epoch + (step == self.num_batches), 0)

    def __iter__(self) -> Iterator[BatchKey]:
        """Yield the keys of the epoch that is set when the first key is requested."""
        epoch, first, self.first_step = self.epoch, self.first_step or 0, None
        self.on_first_key()
        for step in range(first, self.num_batches):
            num_parts = self.first_parts if step == first else self.num_parts
            for part in range(num_parts):
                yield BatchKey(epoch, step, self.size_of(epoch), part, num_parts)

    def __len__(self) -> int:
        return self.num_batches
