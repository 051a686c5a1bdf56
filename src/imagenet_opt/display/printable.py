"""Text that is safe to print, since names of files and classes may contain terminal control characters; and whether an
output is a screen, with bars that are redrawn and styles, or a log, with plain lines."""

import logging
import os
import re
from contextlib import suppress
from typing import Any, TextIO

from imagenet_opt import errors


def printable(text: str) -> str:
    """`text` with control characters escaped, as \\x1b; line ends and tabs stay."""
    return "".join(part if part in ("\n", "\t") else errors.printable(part) for part in re.split(r"([\n\t])", text))


def make_printable(record: logging.LogRecord) -> bool:
    """A logging filter that makes every record printable and drops none."""
    with suppress(TypeError, ValueError):  # logging itself reports arguments that do not match the message
        record.msg, record.args = printable(record.getMessage()), ()
    return True


def is_screen(stream: TextIO) -> bool:
    """Whether lines may be redrawn: on a terminal that can move its cursor, and not in a job of a CI service (CI=true),
    which keeps all that is written."""
    is_logged = os.environ.get("CI", "").lower() not in ("", "0", "false")
    return stream.isatty() and not is_logged and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")


def styles(stream: TextIO) -> dict[str, Any]:
    """Arguments of a `rich.console.Console` that writes to this stream. With NO_COLOR (https://no-color.org) it has no
    bold and no dim text either; elsewhere than on a terminal rich decides (FORCE_COLOR)."""
    is_log = stream.isatty() and not is_screen(stream)
    is_plain = is_log or bool(os.environ.get("NO_COLOR"))
    return {"force_terminal": False if is_log else None, "color_system": None if is_plain else "auto"}
