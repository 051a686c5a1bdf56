"""The keys that a user can set: no key is added or removed unnoticed.

`python -m tests.test_config_keys` rewrites tests/config_keys.txt.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from imagenet_opt.config.overrides import config_folder
from tests.conftest import whole

FROZEN = Path(__file__).with_name("config_keys.txt")
CHOSEN = ("data", "model", "optimizer", "schedule", "trainer")
"""Groups of which a configuration has one member."""
COLLECTED = ("logger", "callbacks")
"""Groups of which a configuration has several members; the list in train.yaml has the keys of most members."""
CHANGING = ("experiment", "rehearse")
"""Groups whose files set keys of the others."""
SEPARATE = ("study",)
"""Groups that are no part of the configuration of a run."""


def keys_of_all() -> list[str]:
    """Every key of train.yaml; for each member of a group, the keys that it adds or removes; for each recipe, rehearsal
    and study, the keys that no line before has."""
    base = set(_flat(whole("~hydra")))
    known, lines = set(base), sorted(base)
    for group, member in _members(CHOSEN):
        keys = set(_flat(whole("~hydra", f"{group}={member}")))
        lines += [f"{group}={member}: {key}" for key in sorted(keys - base)]
        lines += [f"{group}={member}: no {key}" for key in sorted(base - keys)]
        known |= keys
    for group, member in _members((*COLLECTED, *CHANGING, *SEPARATE)):
        node = OmegaConf.load(config_folder() / group / f"{member}.yaml")
        if group == "rehearse":
            node = OmegaConf.merge(OmegaConf.load(config_folder() / "rehearsed.yaml"), node)
        node.pop("defaults", None)
        keys = set(_flat(node, group if group in COLLECTED else ""))
        lines += [f"{group}={member}: {key}" for key in sorted(keys - known)]
        known |= keys
    return lines


def _members(groups: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for group in groups:
        for file in sorted((config_folder() / group).glob("*.yaml")):
            if not file.stem.startswith("tuned_"):  # `imagenet-opt tune` writes these files
                yield group, file.stem


def _flat(node: Any, prefix: str = "") -> Iterator[str]:
    """Dotted keys of values and of empty mappings; for a list of mappings, the keys of each mapping."""
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
def test_the_keys_are_the_frozen_keys() -> None:
    keys, frozen = set(keys_of_all()), set(FROZEN.read_text().splitlines())
    added, removed = sorted(keys - frozen), sorted(frozen - keys)
    assert not (added or removed), (
        f"keys of conf/ changed. Added: {', '.join(added) or 'none'}. Removed: {', '.join(removed) or 'none'}. "
        "If this is intended, run `python -m tests.test_config_keys`, and change docs/configuration.md and CHANGELOG.md"
    )


def test_every_group_is_frozen() -> None:
    groups = {path.name for path in config_folder().iterdir() if path.is_dir()}
    assert groups - {"hydra"} == {*CHOSEN, *COLLECTED, *CHANGING, *SEPARATE}  # Hydra defines the keys of hydra


if __name__ == "__main__":
    FROZEN.write_text("\n".join(keys_of_all()) + "\n")
