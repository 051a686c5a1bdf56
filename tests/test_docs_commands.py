"""Commands in README, docs/, examples/ and launch/ have keys, recipes and flags that exist.

Keys after a plus may be a reader's own. Words in capitals are placeholders.
"""

import re
from collections.abc import Iterator
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest

from imagenet_opt.cli.main import COMMANDS
from imagenet_opt.config.keys import defaults
from imagenet_opt.config.overrides import config_folder
from imagenet_opt.measure.rehearsal import Accelerator

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md", "launch/*.md")
    for page in ROOT.glob(pattern)
    if page.name != "CHANGELOG.md"  # names what is gone, too
)
CODE = re.compile(r"(?<!`)`([^`\n]+(?:\n[^`\n]+)?)`(?!`)|^(?: {4}|```\w*\n)(.*)$", re.MULTILINE)
COMMAND = re.compile(r"(?:imagenet-opt|train\.py) +(.*?)(?= && | \| |; | # | {3}|$)", re.DOTALL)
KEYS = {*defaults(), *(f"callbacks.rehearsal.{field.name}" for field in fields(Accelerator))}
GROUPS = {folder.name for folder in config_folder().iterdir() if folder.is_dir()}
OWN = ("study", "hydra", "allow_targets", "recipe")


def mistakes(text: str) -> Iterator[str]:
    """Words of the commands of a page that no command takes."""
    for found in CODE.finditer(re.sub(r"\\\n *", " ", text)):
        for command in COMMAND.findall(found[1] or found[2] or ""):
            words = command.split()
            name = words[0] if words and words[0] in COMMANDS else "train"
            told = import_module(COMMANDS[name][0]).HELP
            for word in words:
                key, equals, value = word.strip("'\"[]").partition("=")
                if key.startswith("--"):
                    if told and key not in (*re.findall(r"--[\w-]+", told), "--help"):
                        yield word
                elif equals and not key.startswith("+") and re.fullmatch(r"~?[a-z][\w.]*", key):
                    yield from [word] * (not is_known(key.strip("~"), value.strip("'\"[]"), told))


def is_known(key: str, value: str, told: str) -> bool:
    if key in GROUPS and re.fullmatch(r"[a-z0-9_]+", value) and not value.startswith(("tuned_", "mine", "null")):
        return (config_folder() / key / f"{value}.yaml").exists()
    return (
        key in KEYS | GROUPS or key.startswith(OWN) or f"{key}=" in told or any(k.startswith(f"{key}.") for k in KEYS)
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_a_page_have_only_words_that_exist(page: Path) -> None:
    assert list(mistakes(page.read_text())) == []
