"""Text that is safe to print: names of files and classes may hold what a terminal would obey."""

import logging
import re
from contextlib import suppress

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""All but tab and new line; and what turns the direction of writing."""


def printable(text: str) -> str:
    """`text` with control characters written as \\x1b."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def make_printable(record: logging.LogRecord) -> bool:
    """A filter for handlers of logging, which lets all pass."""
    with suppress(TypeError, ValueError):  # arguments that do not fit are logging's own to tell
        record.msg, record.args = printable(record.getMessage()), ()
    return True
