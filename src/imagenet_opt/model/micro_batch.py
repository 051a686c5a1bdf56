"""Micro-batches: parts of a batch for devices that cannot hold the batch."""

import logging
from collections.abc import Callable
from itertools import accumulate
from typing import Any, TypeVar

from torch import nn

from imagenet_opt.errors import ConfigError, OutOfMemory, first_line
from imagenet_opt.out_of_memory import ran_out

log = logging.getLogger(__name__)

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
Result = TypeVar("Result")


class MicroBatches:
    """Splits a batch into parts of at most `size` images (None: the whole batch); halves `size` if memory runs out."""

    def __init__(self, size: int | None) -> None:
        if size is not None and size < 1:
            raise ConfigError(f"model.micro_batch_size={size} must be at least 1, or null for the whole batch")
        self.asked = self.size = size

    def run(
        self, work: Callable[[slice], Result], num_images: int, take_back: Callable[[], None] | None
    ) -> list[Result]:
        """Results of `work` for each part. take_back: undoes the finished parts; None with several processes.

        Raises OutOfMemory, with the micro-batch to try, without `take_back` or if a single image does not fit.
        """
        while True:
            sizes = part_sizes(num_images, self.size)
            try:
                return [work(slice(stop - size, stop)) for stop, size in zip(accumulate(sizes), sizes, strict=True)]
            except RuntimeError as error:
                if not ran_out(error):
                    raise
                reason = first_line(error)
            # Only outside of `except` does the error no longer hold the step's activations.
            if sizes[0] == 1:
                raise OutOfMemory(
                    f"not even one image fits into the device's memory ({reason}); lower data.image_size, or set "
                    "callbacks.acceleration.gradient_checkpointing=true"
                )
            self.size = (sizes[0] + 1) // 2
            if take_back is None:
                raise OutOfMemory(
                    f"{sizes[0]} images at once do not fit into the device's memory ({reason}); "
                    f"set model.micro_batch_size={self.size}, which changes neither batch nor schedule"
                )
            log.warning(
                f"out of memory ({reason}): from here on micro-batches of {self.size} images instead of {sizes[0]}; "
                "batches and steps stay the same, but bit-identity with an undisturbed run ends here"
            )
            take_back()

    def state_dict(self) -> dict[str, int]:
        return {"micro_batch_size": self.size or 0, "micro_batch_size_asked": self.asked or 0}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue with the size that the run had reached, unless another size is configured now."""
        if (self.asked or 0) == state["micro_batch_size_asked"]:
            self.size = state["micro_batch_size"] or None


class StepMomentum:
    """Sets the momentum of a network's batch norms so that k micro-batches together weigh as much as one batch.

    With momentum m the running statistics keep the share (1 - m)^k after a step of k micro-batches, and 1 - m if m is
    replaced by 1 - (1 - m)^(1/k). Batch norms with a cumulative mean (momentum=None) are not changed. Norms are found
    by their names, since Lightning replaces them for trainer.sync_batchnorm.
    """

    def __init__(self, net: nn.Module) -> None:
        norms = {name: part.momentum for name, part in net.named_modules() if isinstance(part, _NORMS)}
        self._momenta = {name: momentum for name, momentum in norms.items() if momentum is not None}
        self._net = net
        self._num_parts = 1

    def set(self, num_parts: int) -> None:
        """num_parts: micro-batches of a step."""
        if num_parts == self._num_parts:  # so that the momentum of whole batches has no rounding error
            return
        self._num_parts = num_parts
        for name, momentum in self._momenta.items():
            norm: Any = self._net.get_submodule(name)
            norm.momentum = 1 - (1 - momentum) ** (1 / num_parts)


def part_sizes(num_images: int, size: int | None) -> list[int]:
    """Sizes of the fewest parts of at most `size` images, whose sizes differ by at most 1; larger parts come first.
    size=None: one part."""
    num_parts = -(-num_images // (size or num_images))
    smaller, num_larger = divmod(num_images, num_parts)
    return [smaller + 1] * num_larger + [smaller] * (num_parts - num_larger)
