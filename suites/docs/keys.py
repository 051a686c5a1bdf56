"""The page of every key, with type, default and meaning, from conf/ and the classes that it builds."""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from inspect import get_annotations
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import yaml
from hydra.utils import get_object

from imagenet_opt.config.overrides import config_folder
from imagenet_opt.data.options import LoaderOptions, option_docs
from imagenet_opt.model.classifier import Classifier
from imagenet_opt.model.initial_weights import load_initial_weights
from imagenet_opt.model.network import build_network
from imagenet_opt.model.optimizer import build_optimizer

CONF = config_folder()
_LINE = re.compile(r"^( *)([\w.]+): *(.*?)(?:\s+#\s*(.*))?$")
_GROUPS = {
    "data": "Data",
    "model": "Network and loss",
    "optimizer": "Optimizer",
    "schedule": "Learning rate over the run",
    "trainer": "Trainer",
    "callbacks": "Callbacks",
    "logger": "Loggers",
}
_INTRODUCTION = """# Every key

`python train.py KEY=VALUE` sets a key, `GROUP=NAME` chooses another file of a group, and `python train.py --cfg job`
prints all keys with your values. This page is made from `conf/` and from the classes that it builds.
"""
_KINDS = {"str": "text", "int": "whole number", "float": "number", "bool": "true or false"}
_KINDS |= {"tuple": "list", "Mapping": "mapping"}
_BUILT_FROM = {"model": (build_network, load_initial_weights, Classifier), "optimizer": (build_optimizer,)}
"""Group -> what the project builds from its keys, where the YAML names no _target_."""


class Key(NamedTuple):
    """A key as a user writes it."""

    name: str
    kind: str
    default: str
    meaning: str


def keys_of(file: Path, prefix: str) -> list[Key]:
    """The keys of one YAML file, whose keys begin with `prefix`."""
    nodes = yaml.safe_load(file.read_text()) or {}
    found = []
    for path, default, comment in _lines(file):
        node, targets = nodes, list(_BUILT_FROM.get(file.parent.name, ()))
        for part in path[:-1]:
            node = node.get(part, {})
        if isinstance(node, Mapping) and "_target_" in node:
            targets = [get_object(node["_target_"])]
        if file.name == "loading.yaml":
            targets = [LoaderOptions]
        if path[-1] in ("_target_", "_partial_", "defaults"):
            continue
        name = ".".join(filter(None, (prefix, *path)))
        meaning = option_docs().get(path[-1], "") if LoaderOptions in targets else ""
        meaning = meaning or comment or next(filter(None, (_from_docstring(t, path[-1]) for t in targets)), "")
        found.append(Key(name, _kind(targets, path[-1]), default, " ".join(meaning.split()).replace("None", "null")))
    return found


def _lines(file: Path) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """(path, default, comment) of each key that has a value."""
    path: list[str] = []
    for text in file.read_text().splitlines():
        if not (line := _LINE.match(text)) or text.lstrip().startswith("#"):
            continue
        indent, name, value, comment = line.groups()
        path[len(indent) // 2 :] = [name]
        if value:
            yield tuple(path), value, comment or ""


def _kind(targets: list[Callable[..., Any]], name: str) -> str:
    """The type in words; empty if the target takes any further options."""
    for target in targets:
        hints = get_annotations(target.__init__ if isinstance(target, type) else target)  # type: ignore[misc]
        if name in hints:
            return " or ".join(dict.fromkeys(filter(None, _words(hints[name]))))
    return ""


def _words(hint: Any) -> Iterator[str]:
    if get_origin(hint) is Literal:
        yield from map(str, get_args(hint))
    elif get_origin(hint) is Annotated:
        yield from _words(get_args(hint)[0])
    elif get_origin(hint) in (Union, UnionType):
        for part in get_args(hint):
            yield from _words(part)
    elif hint is type(None):
        yield "null"
    elif isinstance(hint, str):
        yield hint
    else:
        name = (get_origin(hint) or hint).__name__
        yield {"Path": "text", "Accelerator": "", "Strategy": ""}.get(name, _KINDS.get(name, "list"))


def _from_docstring(target: Callable[..., Any], name: str) -> str:
    """What the docstring of `target` says after "name:"."""
    text = inspect.getdoc(target) or ""
    found = re.search(rf"(?:^|\s)(?:\w+, )*{name}(?:, \w+)*: (.+?)(?=\s(?:\w+, )*\w+: |\n\n|\n\||\Z)", text, re.DOTALL)
    return found.group(1) if found else ""


def page() -> str:
    """Content of keys.md. Raises ValueError for keys without a meaning."""
    parts = [_INTRODUCTION, "## The run\n", _table(keys_of(CONF / "train.yaml", ""))]
    for group, title in _GROUPS.items():
        parts.append(f"## {title}\n")
        for file in _files(group):
            keys = keys_of(file, "data" if file.name == "loading.yaml" else group)
            if group == "data":  # demo.yaml repeats keys of loading.yaml with its own defaults
                keys = [key for key in keys if key.meaning]
            if keys:
                parts += [f"`{_option(group, file)}`\n" if file.name != "loading.yaml" else "", _table(keys)]
    return "\n".join(filter(None, parts))


def _files(group: str) -> list[Path]:
    """YAML files of a group, the default one first."""
    first = [CONF / "loading.yaml", CONF / "data/folder.yaml"] if group == "data" else []
    first += [CONF / group / f"{name}.yaml" for name in ("resnet50", "sgd", "cosine", "default")]
    files = sorted((CONF / group).glob("*.yaml"))
    return [file for file in first if file.exists()] + [file for file in files if file not in first]


def _option(group: str, file: Path) -> str:
    """How a user chooses the file."""
    return f"{group}.{file.stem}" if group == "callbacks" else f"{group}={file.stem}"


def _table(keys: list[Key]) -> str:
    if missing := [key.name for key in keys if not key.meaning]:
        raise ValueError(f"write the meaning of {', '.join(missing)} as a comment in conf/")
    has_types = any(key.kind for key in keys)
    names = ["key", "default", *(["type"] if has_types else []), "meaning"]
    lines = [names, ["---"] * len(names)]
    for name, kind, default, meaning in keys:
        meaning = re.sub(r"(?<!`)\b(_\w+_)\b", r"`\1`", meaning).replace("|", "\\|")
        lines.append([f"`{name}`", f"`{default}`", *([kind] if has_types else []), meaning])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
