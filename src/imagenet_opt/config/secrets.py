"""Refuses a configuration that contains a key or a password, which belong in environment variables.

Run folders, sweeps, logs and Weights & Biases get copies of a configuration. No message repeats a secret value.
"""

import os
import re
from typing import Any

from omegaconf import OmegaConf

from imagenet_opt.config.allowed_targets import leaves
from imagenet_opt.errors import ConfigError

_NAME = re.compile(r"(^|[_.-])(api_?key|access_?key(_id)?|private_?key|secret|passw(or)?d|token|credentials?)$", re.I)
_VALUE = re.compile(
    r"wandb_v\d_\w{10}"
    r"|(?<![0-9a-zA-Z])(AKIA|ASIA)[0-9A-Z]{16}(?![0-9a-zA-Z])"  # AWS
    r"|(?<!\w)hf_[0-9a-zA-Z]{20}"  # Hugging Face
    r"|(?<!\w)(gh[pousr]_|github_pat_)\w{20}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY"
    r"|://[^/\s:@]*:[^/\s@]+@"  # user and password in an address
    r"|(?i:X-Amz-(Signature|Credential)=)"
)
_WORDS = re.compile(r"[^\s,=&'\"()\[\]{}]+")
_HEX = re.compile(r"(?<![\w-])(local-)?[0-9a-fA-F]{40}(?![\w-])")  # W&B, and its own servers
_VARIABLE = re.compile(r"key|token|secret|passw|credential|auth(?!or)|cookie|netrc|dsn", re.I)


def names_secret(name: str) -> bool:
    """Whether the name of a configuration key suggests a secret."""
    return _NAME.search(name) is not None


def looks_secret(text: str) -> bool:
    """Whether a text contains a key of a known form, or an address with a password. A Git commit has the form of a W&B
    key, but a commit in a path (`snapshots/<commit>`) or in a name (`run-<commit>`) is no secret."""
    words = (word for word in _WORDS.findall(text) if "/" not in word)
    return _VALUE.search(text) is not None or any(_HEX.search(word) for word in words)


def check_secrets(config: Any) -> None:
    """Raise ConfigError for a text in plain containers that is a secret by the name of its key or by its form."""
    for place, key, value in leaves(config):
        if isinstance(value, str) and value and (names_secret(key) or looks_secret(value)):
            raise _refusal(place)
        if looks_secret(place):
            raise _refusal("a key of the configuration")


def check_overrides(overrides: list[str]) -> None:
    """Raise ConfigError for an override that contains a secret, before any other message can repeat the override."""
    for override in overrides:
        name, _, value = override.partition("=")
        if looks_secret(override) or (names_secret(name) and value.lower() not in ("", "null", "true", "false")):
            raise _refusal("an override" if looks_secret(name) else name.lstrip("+~"))


def guard_environment() -> None:
    """Make `${oc.env:NAME}` refuse variables that contain a secret."""
    OmegaConf.register_new_resolver("oc.env", _variable, replace=True)


_ABSENT = object()


def _variable(name: str, default: Any = _ABSENT) -> str | None:
    value = os.environ.get(name)
    if _VARIABLE.search(name) or looks_secret(value or ""):
        raise ConfigError(f"the environment variable {name} is a secret, which no configuration may hold")
    if value is None and default is _ABSENT:
        raise ConfigError(f"the environment variable {name} is not set; set it, or write ${{oc.env:{name},DEFAULT}}")
    if value is not None:
        return value
    return None if default is None else str(default)


def _refusal(place: str) -> ConfigError:
    return ConfigError(
        f"{place} looks like a key or a password (not repeated here), and configurations are copied and logged; "
        "put it into the environment, as WANDB_API_KEY, AWS_PROFILE or HF_TOKEN, or run `wandb login`"
    )
