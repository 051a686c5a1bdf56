"""The callbacks of conf/train.yaml that are off until a key has a value, such as averaged weights."""

from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from imagenet_opt.config.overrides import config_folder, key_of, value_of
from imagenet_opt.errors import ConfigError

SWITCHES: dict[str, dict[str, float | None]] = {
    "resolution_schedule": {"start": 160},
    "ema": {"decay": 0.9998, "half_life_steps": None},
    "early_stop": {"stopping_threshold": 0.759, "patience": None},
    "profiler": {"start_step": 10},
}
"""Callback -> its keys of which one switches it on, with the values that +callbacks=NAME sets."""


def switched_on(words: list[str]) -> list[str]:
    """Replace +callbacks=NAME of an optional callback by the key that switches it on, if no word sets such a key.

    Raises ConfigError for a sweep over names of optional callbacks.
    """
    found: list[str] = []
    for word in words:
        names = value_of(word).strip("[]").split(",") if key_of(word) == "callbacks" else []
        optional = [name for name in names if name in SWITCHES]
        if not optional:
            found.append(word)
            continue
        if len(names) > 1 and not value_of(word).startswith("["):
            raise ConfigError(f"{word}: sweep a key in its place, such as {_switch(optional[0])},null")
        if not word.startswith("+"):
            found.append(word)
        elif others := [name for name in names if name not in SWITCHES]:
            found.append(f"+callbacks=[{','.join(others)}]")
        found += [_switch(name) for name in optional if not _sets_switch(words, name)]
    return found


def leave_out_idle(config: DictConfig, words: list[str]) -> None:
    """Remove the optional callbacks that no key switches on. words: the overrides.

    Raises ConfigError if a key of such a callback was changed, unless a word switches the callback off.
    """
    for name, switches in SWITCHES.items():
        node = (config.get("callbacks") or {}).get(name)
        if node is None or any(node.get(key) is not None for key in switches):
            continue
        default: Any = OmegaConf.to_container(OmegaConf.load(config_folder() / "callbacks" / f"{name}.yaml"))
        values: Any = OmegaConf.to_container(node)
        changed = [key for key, value in values.items() if value != default[name].get(key)]
        if changed and not _sets_switch(words, name):
            key = f"callbacks.{name}.{changed[0]}"
            raise ConfigError(f"{key} has no effect, since callbacks.{name} is off; add {_switch(name)}")
        with open_dict(config):
            config.callbacks.pop(name)


def _switch(name: str) -> str:
    key, value = next(iter(SWITCHES[name].items()))
    return f"callbacks.{name}.{key}={value}"


def _sets_switch(words: list[str], name: str) -> bool:
    return not {f"callbacks.{name}.{key}" for key in SWITCHES[name]}.isdisjoint(map(key_of, words))
