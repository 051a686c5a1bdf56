"""What a configuration must not contain: a key or a password, and a `_target_` outside of the allowed packages.

A recipe is code and trusted like code (docs/trust.md). The check of targets stops an accident, and a `_target_` that
came out of a checkpoint. Keys belong in environment variables, since run folders, sweeps, logs and Weights & Biases get
copies of a configuration. No message repeats a secret value.
"""

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
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
    for place, value in entries(OmegaConf.to_container(config, resolve=True), path):
        is_target = _key(place).rpartition(".")[2] == "_target_"
        if is_target and not (_is_within(value, names) or _is_defined_in_packages(value, place)):
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


def check_secrets(values: Iterable[tuple[str, Any]]) -> None:
    """Raise ConfigError for a text that is a secret by the name of its key or by its form. values: `entries`."""
    for place, value in values:
        if isinstance(value, str) and value and (names_secret(_key(place)) or looks_secret(value)):
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
    if _VALUE.search(text) is not None:
        return True
    return _HEX.search(text) is not None and any(_HEX.search(word) for word in _WORDS.findall(text) if "/" not in word)


def _refusal(place: str) -> ConfigError:
    return ConfigError(
        f"{place} looks like a key or a password (not repeated here), and configurations are copied and logged; "
        "put it into the environment, as WANDB_API_KEY, AWS_PROFILE or HF_TOKEN, or run `wandb login`"
    )


def entries(value: Any, path: str = "", *, lists: bool = True) -> list[tuple[str, Any]]:
    """(path, value) of everything below `path` in nested containers that holds nothing itself, in order: data.mean[0].
    lists: whether to look into lists; else a list is a value."""
    found, rest = list[tuple[str, Any]](), [(path, value)]
    while rest:
        path, value = rest.pop()
        if isinstance(value, Mapping) and value:
            rest += [(f"{path}.{name}" if path else str(name), child) for name, child in value.items()][::-1]
        elif lists and isinstance(value, list | tuple) and value:
            rest += [(f"{path}[{i}]", child) for i, child in enumerate(value)][::-1]
        elif path:
            found.append((path, value))
    return found


def _key(path: str) -> str:
    """The key of the value at `path`, or of the list that holds it."""
    return re.sub(r"\[\d+\]", "", path)
