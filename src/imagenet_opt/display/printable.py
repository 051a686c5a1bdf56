"""Text that is safe to print: names of files and classes may hold what a terminal would obey."""

import logging
import re
from contextlib import suppress

from imagenet_opt import errors


def printable(text: str) -> str:
    """`text` with control characters written as \\x1b; its lines and tabs stay."""
    return "".join(part if part in ("\n", "\t") else errors.printable(part) for part in re.split(r"([\n\t])", text))


def make_printable(record: logging.LogRecord) -> bool:
    """A filter for handlers of logging, which lets all pass."""
    with suppress(TypeError, ValueError):  # arguments that do not fit are logging's own to tell
        record.msg, record.args = printable(record.getMessage()), ()
    return True
