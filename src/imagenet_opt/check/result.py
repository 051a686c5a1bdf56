"""The result of a check of a data set."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "info", "warning", "error"]


@dataclass(frozen=True)
class CheckResult:
    """The result of one check. text: the finding, and the remedy unless the level is ok.

    details: one file or class each; names may contain terminal control characters.
    """

    check: str
    level: Level
    text: str
    details: tuple[str, ...] = ()
