"""Refuses a configuration that contains a key or a password, which belong in environment variables.

Run folders, sweeps, logs and Weights & Biases get copies of a configuration. No message repeats a secret value.
"""

import re
from typing import Any

from imagenet_opt.config.allowed_targets import leaves
from imagenet_opt.config.overrides import key_of, value_of
from imagenet_opt.errors import ConfigError

_NAME = re.compile(
    r"(^|[_.-])(api_?key|access_?key(_id)?|private_?key|secret|passw(or)?d|pass|passphrase|pwd|token|credentials?)$",
    re.I,
)
_VALUE = re.compile(
    r"wandb_v\d_\w{10}"
    r"|(?<![0-9a-zA-Z])(AKIA|ASIA)[0-9A-Z]{16}(?![0-9a-zA-Z])"  # AWS
    r"|(?<!\w)(hf_|gh[pousr]_|github_pat_|sk-proj-|sk-ant-|AIza|xox[a-z]-)[\w-]{10}"  # Hugging Face, GitHub, Google ...
    r"|(?<!\w)eyJ[\w-]+\.eyJ|(?i:bearer\s+\S{10})"  # a JSON web token
    r"|-----BEGIN [A-Z ]*PRIVATE KEY"
    r"|://[^/\s@]+@"  # a user, or a password, in an address
    r"|(?i:[?&](sig|X-(Amz|Goog)-(Signature|Credential))=)"  # a signed address
    r"|(?i:oc\.env:\w*(key|token|secret|pass|pwd|credential))"  # ${oc.env:DB_PASSWORD}
)
_WORDS = re.compile(r"[^\s,=&'\"()\[\]{}]+")
_HEX = re.compile(r"(?<![\w-])(local-)?[0-9a-fA-F]{40}(?![\w-])")  # W&B, and its own servers


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
        name, harmless = key_of(override), ("", "null", "true", "false")
        if looks_secret(override) or (names_secret(name) and value_of(override).lower() not in harmless):
            raise _refusal("an override" if looks_secret(name) else name)


def _refusal(place: str) -> ConfigError:
    return ConfigError(
        f"{place} looks like a key or a password (not repeated here), and configurations are copied and logged; "
        "put it into the environment, as WANDB_API_KEY, AWS_PROFILE or HF_TOKEN, or run `wandb login`"
    )
