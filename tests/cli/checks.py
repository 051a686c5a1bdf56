"""A small data set and the check command."""

import shutil
from collections.abc import Callable
from pathlib import Path

Check = Callable[..., tuple[int, dict[str, dict[str, object]], str]]


def copies(source: Path, *targets: Path) -> None:
    for target in targets:
        shutil.copy(source, target)
