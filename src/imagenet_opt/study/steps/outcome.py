"""What a study of steps has measured so far."""

from dataclasses import dataclass, field

from imagenet_opt.study.request import Request
from imagenet_opt.study.steps.parity import Parity
from imagenet_opt.study.steps.plan import Plan

Speed = dict[str, float | None]
"""What `study_turn.speed` gives."""


@dataclass
class Outcome:
    """speeds: by row, one a round. failures: by row, why. parities: by row, or why its loss was not compared.

    losses: by row and seed, the curve. cold: whether full runs read files from storage. ended: why measuring ended
    early, if it did.
    """

    plan: Plan
    request: Request
    cold: bool
    speeds: dict[str, list[Speed]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    parities: dict[str, Parity | str] = field(default_factory=dict)
    losses: dict[str, dict[int, list[float]]] = field(default_factory=dict)
    ended: str | None = None

    def notes(self) -> list[str]:
        """What stands below the table, beside what its numbers mean."""
        return [*self.plan.notes(), *([self.ended] if self.ended else [])]
