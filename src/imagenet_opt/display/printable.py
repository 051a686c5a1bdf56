"""Text that is safe to print: names of files and classes may contain terminal control characters."""

import logging
import re
from contextlib import suppress

from imagenet_opt import errors


def printable(text: str) -> str:
    """`text` with control characters escaped, as \\x1b; line ends and tabs stay."""
    return "".join(part if part in ("\n", "\t") else errors.printable(part) for part in re.split(r"([\n\t])", text))


def make_printable(record: logging.LogRecord) -> bool:
    """A logging filter that makes every record printable and drops none."""
    with suppress(TypeError, ValueError):  # logging itself reports arguments that do not match the message
        record.msg, record.args = printable(record.getMessage()), ()
    return True
