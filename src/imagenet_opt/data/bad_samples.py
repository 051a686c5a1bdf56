"""Counts what could not be opened: each is told once, too many end the run."""

import logging

from imagenet_opt.errors import TooManyBadSamples

log = logging.getLogger(__name__)

_SHOWN = 20


class BadSamples:
    """Samples that were skipped, by index. Raises TooManyBadSamples past `max_fraction` of the data set."""

    def __init__(self, *, num_samples: int, max_fraction: float) -> None:
        self.most = max_fraction * num_samples
        self.max_fraction = max_fraction
        self.reasons: dict[int, str] = {}

    def add(self, skipped: tuple[tuple[int, str], ...]) -> None:
        for index, reason in skipped:
            if index not in self.reasons:
                self.reasons[index] = reason
                log.warning(f"skipped: {reason}")
        if len(self.reasons) > self.most:
            listed = "".join(f"\n  {reason}" for reason in list(self.reasons.values())[:_SHOWN])
            raise TooManyBadSamples(
                f"{len(self.reasons)} bad samples are more than data.max_bad_fraction={self.max_fraction:g} of the "
                f"data set; mend them, or allow more:{listed}"
            )
