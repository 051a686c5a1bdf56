"""The keys that a user can set: none comes or goes unnoticed.

`python -m tests.test_config_keys` writes tests/config_keys.txt anew.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from imagenet_opt.config.overrides import config_folder
from tests.conftest import composed

FROZEN = Path(__file__).with_name("config_keys.txt")
CHOSEN = ("data", "model", "optimizer", "schedule", "trainer", "experiment", "rehearse")
"""Groups of which one member is chosen instead of another."""
COLLECTED = ("logger", "callbacks")
"""Groups of which a list of members is chosen; train.yaml's own list has the keys of most."""
OWN = ("study",)
"""Groups whose members are no part of the configuration of a run."""


def keys_of_all() -> list[str]:
    """Every key of train.yaml, and with every member of every group the keys that it adds to these or takes away."""
    base = set(_flat(composed("~hydra")))
    lines = sorted(base)
    for group, member in _members((*CHOSEN, *COLLECTED)):
        keys = set(_flat(composed("~hydra", _override(group, member))))
        lines += [f"{group}={member}: {key}" for key in sorted(keys - base)]
        if group not in COLLECTED:
            lines += [f"{group}={member}: no {key}" for key in sorted(base - keys)]
    for group, member in _members(OWN):
        content = OmegaConf.load(config_folder() / group / f"{member}.yaml")
        lines += [f"{group}={member}: {key}" for key in sorted(set(_flat(content)))]
    return lines


def _members(groups: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for group in groups:
        for file in sorted((config_folder() / group).glob("*.yaml")):
            if not file.stem.startswith("tuned_"):  # which `imagenet-opt tune` writes
                yield group, file.stem


def _override(group: str, member: str) -> str:
    if group in COLLECTED:
        return f"{group}=[{member}]"
    return f"{group}={member}"


def _flat(node: Any, prefix: str = "") -> Iterator[str]:
    """Dotted keys of values, and of mappings that are empty. Of a list of mappings, the keys of each."""
    node = OmegaConf.to_container(node) if OmegaConf.is_config(node) else node
    if isinstance(node, dict) and node:
        for key, value in node.items():
            yield from _flat(value, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(node, list) and any(isinstance(value, dict) for value in node):
        for value in node:
            yield from _flat(value, f"{prefix}[]")
    else:
        yield prefix


@pytest.mark.slow
def test_the_keys_are_those_that_are_frozen() -> None:
    found, frozen = set(keys_of_all()), set(FROZEN.read_text().splitlines())
    new, gone = sorted(found - frozen), sorted(frozen - found)
    assert not (new or gone), (
        f"keys of conf/ changed. New: {', '.join(new) or 'none'}. Gone: {', '.join(gone) or 'none'}. "
        "Where that is meant, run `python -m tests.test_config_keys`, and change docs/configuration.md and CHANGELOG.md"
    )


def test_every_group_is_frozen() -> None:
    groups = {path.name for path in config_folder().iterdir() if path.is_dir()}
    assert groups - {"hydra"} == {*CHOSEN, *COLLECTED, *OWN}  # hydra's keys are Hydra's own


if __name__ == "__main__":
    FROZEN.write_text("\n".join(keys_of_all()) + "\n")
