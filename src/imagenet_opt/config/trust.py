"""What a configuration must not contain: a key or a password, and a `_target_` outside of the allowed packages.

A recipe is code and trusted like code (docs/trust.md). The check of targets stops an accident, and a `_target_` that
came out of a checkpoint. Keys belong in environment variables, since run folders, sweeps, logs and Weights & Biases get
copies of a configuration. No message repeats a secret value.
"""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf

from imagenet_opt.config.overrides import key_of, value_of
from imagenet_opt.errors import ConfigError, did_you_mean

PACKAGES = (
    "imagenet_opt.callbacks",
    "imagenet_opt.data.datamodule",
    "imagenet_opt.model.schedule",
    "imagenet_opt.run.loggers",
    "lightning.pytorch",
)
"""Packages that define what a `_target_` may name; allow_targets adds the user's own."""
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


def check_targets(config: DictConfig, path: str = "", *, allowed: str | Sequence[str] | None) -> None:
    """Raise ConfigError at the first forbidden `_target_` below `config`. path: key of `config`. allowed: the user's
    packages, modules or full names (allow_targets)."""
    names = [allowed] if isinstance(allowed, str) else allowed or ()
    for place, key, value in entries(OmegaConf.to_container(config, resolve=True), path):
        if key == "_target_" and not (_is_within(value, names) or _is_defined_in_packages(value, place)):
            raise ConfigError(
                f"{place}={value} is in none of the packages that a configuration may build from; if this code is "
                f"yours, set allow_targets=[{value}], here, in the recipe or in conf/train.yaml"
            )


def find(target: str, place: str) -> Any:
    """The class or function that `target` names. Raises ConfigError if Python cannot find or import it."""
    try:
        return get_object(target)
    except Exception as error:  # importing runs a module, which may raise anything
        cause = error.__cause__ or error
        reason = " ".join(str(cause).split()) or type(error).__name__
        module, _, name = target.rpartition(".")
        if module in sys.modules and not hasattr(sys.modules[module], name):
            names = [known for known in vars(sys.modules[module]) if known[:1] != "_"]
            reason = f"{module} has no {name}; {did_you_mean(name, names, 'see its names')}"
        raise ConfigError(f"{place}={target} cannot be found: {reason}") from error


def _is_within(target: Any, names: Sequence[str]) -> bool:
    """Whether `target` is one of `names`, or inside one of them."""
    return isinstance(target, str) and any(target == name or target.startswith(f"{name}.") for name in names)


def _is_defined_in_packages(target: Any, place: str) -> bool:
    """False also for a name that a module of PACKAGES only imports, such as callbacks.mixing.os.system."""
    return _is_within(target, PACKAGES) and _is_within(getattr(find(target, place), "__module__", None), PACKAGES)


def check_secrets(config: Any) -> None:
    """Raise ConfigError for a text in plain containers that is a secret by the name of its key or by its form."""
    for place, key, value in entries(config):
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


def names_secret(name: str) -> bool:
    """Whether the name of a configuration key suggests a secret."""
    return _NAME.search(name) is not None


def looks_secret(text: str) -> bool:
    """Whether a text contains a key of a known form, or an address with a password. A Git commit has the form of a W&B
    key, but a commit in a path (`snapshots/<commit>`) or in a name (`run-<commit>`) is no secret."""
    words = (word for word in _WORDS.findall(text) if "/" not in word)
    return _VALUE.search(text) is not None or any(_HEX.search(word) for word in words)


def _refusal(place: str) -> ConfigError:
    return ConfigError(
        f"{place} looks like a key or a password (not repeated here), and configurations are copied and logged; "
        "put it into the environment, as WANDB_API_KEY, AWS_PROFILE or HF_TOKEN, or run `wandb login`"
    )


def entries(value: Any, path: str = "", key: str = "") -> Iterator[tuple[str, str, Any]]:
    """(path, last key, value) of every value in nested containers, without the containers themselves."""
    if isinstance(value, Mapping):
        for name, child in value.items():
            yield from entries(child, f"{path}.{name}" if path else str(name), str(name))
    elif isinstance(value, list | tuple):
        for i, child in enumerate(value):
            yield from entries(child, f"{path}[{i}]", key)
    else:
        yield path, key, value
