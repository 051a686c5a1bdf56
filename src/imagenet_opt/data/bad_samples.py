"""Samples that a process could not open: how many are allowed, and their names."""

import logging
from dataclasses import dataclass, field

from imagenet_opt.errors import TooManyBadSamples

log = logging.getLogger(__name__)

_SHOWN = 3
_ALWAYS_ALLOWED = 3
"""Bad samples allowed with any fraction above 0, because the fraction of a small data set may be less than one."""


@dataclass(kw_only=True)
class BadSamples:
    """Samples that one process skipped: index -> reason. Raises TooManyBadSamples past `max_fraction` of the data set.

    Each of `world_size` processes counts only the samples that it has read. A process reads another share of the
    data set in each epoch, so the allowed number grows until the process has read the whole data set.
    """

    num_samples: int
    max_fraction: float
    world_size: int = 1
    reasons: dict[int, str] = field(default_factory=dict)

    def add(self, skipped: tuple[tuple[int, str], ...], epoch: int) -> None:
        for index, reason in skipped:
            if index not in self.reasons:
                self.reasons[index] = reason
                log.warning(f"skipped: {reason}")
        num_read = self.num_samples * min(1.0, (epoch + 1) / self.world_size)
        allowed = max(_ALWAYS_ALLOWED, int(self.max_fraction * num_read)) if self.max_fraction else 0
        if (num := len(self.reasons)) > allowed:
            first = "; ".join(list(self.reasons.values())[:_SHOWN])
            more = f"; and {num - _SHOWN} more" if num > _SHOWN else ""
            raise TooManyBadSamples(
                f"{num} bad sample{'s' * (num > 1)}, and data.max_bad_fraction={self.max_fraction:g} allows {allowed} "
                f"of the {num_read:.0f} samples that this process has read: {first}{more}. The log names all of them "
                "(skipped: ...); fix the files, or raise data.max_bad_fraction"
            )
