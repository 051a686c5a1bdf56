"""Files that are whole or not there."""

import os
import platform
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write so that a reader, or a crash, never meets half a file."""
    fresh = path.with_name(f".{path.name}.{platform.node()}.{os.getpid()}")
    fresh.write_text(text, encoding="utf-8", newline="")
    os.replace(fresh, path)
