"""What a look at a data set finds."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "info", "warning", "error"]


@dataclass(frozen=True)
class Verdict:
    """One thing that was looked at. text: what was found, and what to do unless all is well.

    details: files or classes, one each. They may hold what a terminal would obey.
    """

    check: str
    level: Level
    text: str
    details: tuple[str, ...] = ()
