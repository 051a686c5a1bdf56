"""The commands that Markdown pages show: in blocks of code, in tables and in sentences."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

_COMMAND = re.compile(
    r"(?:[A-Z_]+=\S+ +)*(?:imagenet-opt|python3?|train\.py|torchrun|pip|srun|sbatch|\.ci/\S+|tests/\S+\.sh)(?=\s|$)"
)
_SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_FENCE = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
_NOT_RUN = re.compile(
    r"<!-- *not run:[^>]*-->\n\n?(?:```.*?\n```|(?: {4}[^\n]*\n)+)|`[^`]+` ?<!-- *not run:[^>]*-->", re.DOTALL
)
"""A comment on the page, `<!-- not run: why -->`, and the block of code below it or the words of code before it."""
_ENDS = re.compile(r" && | \|\|? |; | > |\. (?=[A-Z])")
"""Between two commands of a line, or between a command and a sentence."""


@dataclass(frozen=True)
class Command:
    """A command of a page. words: without `...`."""

    place: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.place}: {' '.join(self.words)}"


def commands_of(text: str, name: str = "") -> list[Command]:
    """All commands of a page, in order. name: of the page, for their places."""
    text = _NOT_RUN.sub(lambda found: "\n" * found[0].count("\n"), text)
    found = [(line, _words(part)) for line, part in sorted([*_in_blocks(text), *_in_spans(text)])]
    return [Command(f"{name}:{line}", words) for line, words in found if len(words) > 1 or "/" in words[0]]


def _in_blocks(text: str) -> Iterator[tuple[int, str]]:
    """Line number and text of each line of code that starts a command; lines that end in a backslash are joined."""
    fenced = {i for found in _FENCE.finditer(text) for i in range(*(text.count("\n", 0, end) for end in found.span()))}
    lines, i = text.split("\n"), 0
    while i < len(lines):
        first, line = i, lines[i]
        while line.endswith("\\") and i + 1 < len(lines):
            i += 1
            line = f"{line[:-1].rstrip()} {lines[i].strip()}"
        if first in fenced or line.startswith("    "):
            shown = re.split(r"\s{2,}", line.strip().removeprefix("$ "))[0]  # two spaces begin an explanation
            yield from ((first + 1, part) for part in _parts(shown))
        i += 1


def _in_spans(text: str) -> Iterator[tuple[int, str]]:
    text = _FENCE.sub(lambda found: "\n" * found[0].count("\n"), text)
    for found in _SPAN.finditer(text):
        if "\n\n" not in found[1]:
            line = text.count("\n", 0, found.start()) + 1
            yield from ((line, part) for part in _parts(" ".join(found[1].split())))


def _parts(line: str) -> list[str]:
    """The commands of a line of a shell."""
    return [part for part in (part.removeprefix("until ") for part in _ENDS.split(line)) if _COMMAND.match(part)]


def _words(text: str) -> tuple[str, ...]:
    """The words of a command, without a comment; `$NAME` becomes NAME, and `[--flag]` becomes --flag."""
    try:
        words = shlex.split(text.replace("$", ""), comments=True)
    except ValueError:  # a quotation mark without its second
        words = text.split()
    return tuple(_without_brackets(word) for word in words if word != "...")


def _without_brackets(word: str) -> str:
    word = word.removeprefix("[")
    return word.removesuffix("]") if "[" not in word else word
