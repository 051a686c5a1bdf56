"""Compares keys and values with the arguments of the class or function that is built from them."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from inspect import Parameter, get_annotations, signature
from typing import Any

from pydantic import TypeAdapter, ValidationError

from imagenet_opt.config.keys import is_like
from imagenet_opt.config.trust import find
from imagenet_opt.data.datamodule import demo_data, folder_data
from imagenet_opt.data.options import LoaderOptions
from imagenet_opt.errors import ConfigError, did_you_mean


def check_node(node: Any, path: str) -> None:
    """Compare keys and values with what each `_target_` at or below `node` takes. path: key of `node`. Raises
    ConfigError."""
    is_mapping = isinstance(node, Mapping)
    for key, child in node.items() if is_mapping else enumerate(node):
        if isinstance(child, Mapping | list):
            check_node(child, f"{path}.{key}" if is_mapping else f"{path}[{key}]")
    if is_mapping and "_target_" in node:
        _check_arguments(find(node["_target_"], f"{path}._target_"), node, path)


def _check_arguments(target: Callable[..., Any], node: Mapping[str, Any], path: str) -> None:
    options = {key: value for key, value in node.items() if not key.startswith("_")}
    try:
        parameters = dict(signature(target).parameters)
    except (TypeError, ValueError):  # of a builtin
        return
    takes_any = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters.values())
    known = {name for name, parameter in parameters.items() if parameter.kind is not Parameter.VAR_KEYWORD}
    if target in (folder_data, demo_data):
        known, takes_any = known | {field.name for field in fields(LoaderOptions)}, False
    for key in () if takes_any else options.keys() - known:
        full = [f"{path}.{name}" for name in sorted(known)]
        near = [name for name in full if is_like(key, name)]
        hint = did_you_mean(f"{path}.{key}", near, f"leave it out, or remove it with ~{path}.{key}")
        raise ConfigError(f"there is no key {path}.{key}; {hint}")
    check_types(target, options, f"{path}.")


def check_types(target: Callable[..., Any], options: Mapping[str, Any], prefix: str) -> None:
    """Raise ConfigError, with the option's key, if a value does not fit the type that `target` declares. Values that
    are built first, such as a strategy, are not checked here."""
    hints = get_annotations(target.__init__ if isinstance(target, type) else target)  # type: ignore[misc]
    built = {name for name, value in options.items() if isinstance(value, Mapping) and "_target_" in value}
    for name in (hints.keys() & options.keys()) - built:
        try:
            fit = TypeAdapter(hints[name], config={"arbitrary_types_allowed": True}).validate_python(options[name])
        except ValidationError as error:
            value = "null" if options[name] is None else options[name]
            raise ConfigError(f"{prefix}{name}={value} must be {_expected(prefix + name, error)}") from error
        if isinstance(fit, int) and isinstance(options[name], float):
            raise ConfigError(f"{prefix}{name}={options[name]} must be a whole number without a point; write {fit}")
        if isinstance(fit, int | float) and isinstance(value := options[name], str):
            variable = "" if isinstance(fit, bool) else ", or ${oc.decode:${oc.env:NAME}} for a variable"
            raise ConfigError(f"{prefix}{name}={value!r} is a text; write {str(fit).lower()}{variable}")


def _expected(key: str, error: ValidationError) -> str:
    """All forms that the value of `key` may have; a union type fails once for each of its members."""
    texts = (detail["msg"].removeprefix("Input should be ").replace("tuple", "list") for detail in error.errors())
    own = ["'mixed'"] if key == "trainer.precision" else []  # precision_of replaces it
    text = " or ".join(dict.fromkeys([*own, *(text.partition(", unable")[0] for text in texts)]))
    value = error.errors()[0]["input"]
    return f"{text}: write '{key}=\"{value}\"'" if text == "a valid string" and type(value) in (int, float) else text
