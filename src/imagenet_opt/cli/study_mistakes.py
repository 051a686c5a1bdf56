"""What is wrong with a study's file, in words of its keys."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

_EXPECTED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "string_type": "a text",
    "list_type": "a list",
    "tuple_type": "a list",
    "model_type": "keys with their values",
    "too_short": "a list of {min_length} or more",
}
"""By pydantic's name for an error; it has words of its own for the others."""
Place = tuple[str | int, ...]


def told(error: ValidationError, model: type[BaseModel], written: Any) -> str:
    """The first mistake; keys that do not exist come before those that are missing, as one is often the other.

    written: what was validated as `model`.
    """
    details = sorted(error.errors(), key=lambda detail: detail["type"] != "extra_forbidden")
    place, detail = _place(details[0]["loc"]), details[0]
    for part in place:
        model, written = _inner(model, part), written[part]
    alike = [other for other in details if other["type"] == detail["type"] and _place(other["loc"]) == place]
    if detail["type"] == "extra_forbidden":
        said = _unknown(str(detail["loc"][-1]), model.model_fields)
    elif detail["type"] == "missing":
        said = _missing([str(other["loc"][-1]) for other in alike], model.model_fields, written)
    else:
        said = _unfit(detail, [other for other in details if other["loc"][:1] == detail["loc"][:1]], place)
    return f"{_named(place, written)}{said}"


def near_or(name: str, known: Iterable[str], otherwise: str) -> str:
    """What may have been meant by a name that does not exist."""
    near = difflib.get_close_matches(name, list(known), n=2, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else otherwise


def _place(loc: Place) -> Place:
    """Of the item whose key is at `loc`, such as ("steps", 0); empty for a key of the file itself."""
    return loc[:2] if len(loc) > 2 and isinstance(loc[1], int) else ()


def _inner(model: type[BaseModel], part: str | int) -> type[BaseModel]:
    if isinstance(part, int):
        return model
    inner: type[BaseModel] = get_args(model.model_fields[part].annotation)[0]
    return inner


def _named(place: Place, written: Any) -> str:
    if not place:
        return ""
    name = repr(written["name"]) if "name" in written else int(place[1]) + 1
    return f"{str(place[0]).removesuffix('s')} {name}: "


def _unknown(key: str, fields: Mapping[str, FieldInfo]) -> str:
    expected = f"expected {', '.join(fields)}" if fields else "there are none beside title and kind"
    return f"there is no key {key}; {near_or(key, fields, expected)}"


def _missing(keys: list[str], fields: Mapping[str, FieldInfo], written: Mapping[str, Any]) -> str:
    others = [key for key in map(str, written) if key not in fields]
    for key in keys:
        if near := difflib.get_close_matches(key, others, n=1):
            return f"there is no key {near[0]}; did you mean {key}?"
    values = _values(fields[keys[-1]])
    return f"{' and '.join(keys)} must be given{f' ({keys[-1]}: one of {values})' if values else ''}"


def _values(field: FieldInfo) -> str:
    known = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    return field.description or ", ".join(map(str, known))


def _unfit(detail: ErrorDetails, same_key: list[ErrorDetails], place: Place) -> str:
    """same_key: what else is said of it, as of a value that may be one of several types."""
    loc = detail["loc"][len(place) :]
    key = f"{loc[0]}=" if loc else ""
    if detail["type"] == "value_error":
        return f"{key.rstrip('=')}: {detail['msg'].removeprefix('Value error, ')}"
    alike = [other for other in same_key if other["input"] == detail["input"]]
    return f"{key}{detail['input']} must be {' or '.join(dict.fromkeys(map(_expected, alike)))}"


def _expected(detail: ErrorDetails) -> str:
    words = _EXPECTED.get(detail["type"], detail["msg"].removeprefix("Input should be "))
    return words.format(**detail.get("ctx", {}))
