"""Writes the pages of docs/reference/ from the code: keys, commands, metrics, errors.

python -m suites.docs.reference
"""

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from lightning.pytorch import Callback

from imagenet_opt import errors
from imagenet_opt.cli.main import COMMANDS
from imagenet_opt.model.classifier import Classifier
from suites.docs import keys

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs/reference"


def commands() -> str:
    """The help of each command."""
    parts = [
        "# Every command\n",
        "The help that `imagenet-opt COMMAND --help` prints. `python train.py --help` explains training.\n",
    ]
    for name, (module, purpose) in COMMANDS.items():
        parts.append(f"## {name}\n\n{purpose[0].upper()}{purpose[1:]}.\n")
        if text := import_module(module).HELP:
            parts.append(f"```text\n{text}\n```\n")
    return "\n".join(parts)


def metrics() -> str:
    """The table of callbacks and the tables of logged keys, from docstrings."""
    parts = [
        "# Every metric\n",
        "Each run writes these columns to `metrics.csv`, and to W&B with a key. A metric is there only if its callback "
        "is on.\n",
        "## The callbacks\n",
        "Each works in any Lightning project; `examples/lightning_callbacks.py` is one. Acceleration, Mixing and "
        "ResolutionSchedule change images: they need batches that are lists `[images, labels]`, or dicts or objects "
        "with `images` and `labels`, and refuse others in one line. The other callbacks take any batch.\n",
        "| import | purpose | metrics |\n|---|---|---|",
        *map(_callback_row, _callbacks()),
        "",
    ]
    for source in (Classifier, *_callbacks()):
        text = inspect.getdoc(source) or ""
        if tables := re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE):
            file = source.__module__.replace(".", "/") + ".py"
            parts.append(f"## {source.__module__.rpartition('.')[2]}\n\n{_first_sentence(text)} (`{file}`)\n")
            parts += [table.strip() + "\n" for table in tables]
    return "\n".join(parts)


def error_page() -> str:
    """The errors and their remedies, from their docstrings."""
    lines = [
        "# Every error\n",
        "An error is one line: what was found, what was expected, and what to do, with the config key. The exit status "
        "is 2, and 75 for a run that was stopped and can resume.\n",
        "| error | meaning and remedy |\n|---|---|",
    ]
    for name, error in inspect.getmembers(errors, inspect.isclass):
        if issubclass(error, errors.ImagenetOptError | errors.Preempted) and error.__module__ == errors.__name__:
            lines.append(f"| `{name}` | {' '.join((inspect.getdoc(error) or '').split())} |")
    return "\n".join(lines) + "\n"


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=\.)\s", " ".join(text.split()))[0]


def _callback_row(callback: type[Callback]) -> str:
    module = callback.__module__
    groups = dict.fromkeys(re.findall(r"^\| `(\w+/?)", inspect.getdoc(callback) or "", re.MULTILINE))
    keys = ", ".join(f"`{group}*`" if group.endswith("/") else f"`{group}`" for group in groups)
    purpose = _first_sentence(inspect.getdoc(import_module(module)) or "")
    return f"| `from {module} import {callback.__name__}` | {purpose} | {keys or 'none'} |"


def _callbacks() -> Iterator[type[Callback]]:
    for file in sorted((ROOT / "callbacks").glob("*.py")):
        module = import_module(f"imagenet_opt.callbacks.{file.stem}")
        for _, member in inspect.getmembers(module, inspect.isclass):
            if issubclass(member, Callback) and member.__module__ == module.__name__:
                yield member


PAGES = {"keys.md": keys.page, "commands.md": commands, "metrics.md": metrics, "errors.md": error_page}

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page())
