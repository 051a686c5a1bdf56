"""Allowed imports between packages: docs/contributing.md, "The house"."""

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "src/imagenet_opt"
CALLBACKS = REPOSITORY / "callbacks"
FILES = sorted([*PACKAGE.rglob("*.py"), *CALLBACKS.glob("*.py"), REPOSITORY / "train.py"])
LAYERS = (
    ("cli",),
    ("report", "study", "tuning", "sweep"),
    ("doctor", "diagnosis", "bench", "check", "hydrate", "export", "plan"),
    ("evaluate",),
    ("pack",),
    ("training",),
    ("compare",),
    ("probe",),
    ("config", "ops", "timm"),
    ("data", "model"),
    ("run",),
    ("display",),
    ("measure",),
    ("out_of_memory", "object_storage", "processes"),
    ("errors", "machine", "atomic_file", "file_lock", "regular_file", "private_api"),
)
"""Top-level packages and modules; each imports those of lower layers and itself only."""
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
LIBRARIES = {
    "hydra": "config sweep cli/mistakes.py",
    "omegaconf": "config sweep cli compare probe training study tuning doctor check report plan",
    "lightning": "probe compare training run study doctor cli tuning sweep "
    "config/build.py data/datamodule.py model/classifier.py",
}
"""Folders and files that may import a library; train.py may import all of them, and callbacks Lightning."""


@cache
def nodes_of(file: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(file.read_text())))


def imported(file: Path) -> Iterator[str]:
    """Full dotted names of all modules that a file imports, inside functions too."""
    for node in nodes_of(file):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names if is_module(f"{module}.{alias.name}"))


@cache
def is_module(name: str) -> bool:
    place = REPOSITORY / "src" / name.replace(".", "/")
    return place.is_dir() or place.with_suffix(".py").exists()


def place(file: Path) -> str:
    """Path below the package; empty for callbacks and train.py."""
    return file.relative_to(PACKAGE).as_posix() if file.is_relative_to(PACKAGE) else ""


def layer(inside: str) -> str:
    return inside.partition("/")[0].removesuffix(".py")


def may_import(file: Path, module: str) -> bool:
    inside, (top, *rest) = place(file), module.split(".")
    if inside == "private_api.py":
        return True
    if top in LIBRARIES and not inside:
        return file.name == "train.py" or top == "lightning"
    if top in LIBRARIES:
        return bool({layer(inside), inside} & set(LIBRARIES[top].split()))
    if top != "imagenet_opt" or not rest:
        return bool(top)
    if rest[0] == "callbacks":
        return file.name == "train.py"
    if not inside:
        return rest[0] != "cli" or file.name == "train.py"
    return rest[0] == layer(inside) or LEVEL[rest[0]] > LEVEL.get(layer(inside), -1)


def test_imports_follow_the_layers() -> None:
    assert REPOSITORY / "train.py" in FILES and len(FILES) > 200
    refused = [
        f"{file.relative_to(REPOSITORY)} imports {module}"
        for file in FILES
        for module in imported(file)
        if not may_import(file, module)
    ]
    assert refused == []


def test_private_names_of_libraries_are_in_one_file() -> None:
    refused = [
        f"{file.relative_to(REPOSITORY)} uses {name}"
        for file in FILES
        if file.name != "private_api.py"
        for name in foreign_private_names(file)
        if (file.name, name) != ("mistakes.py", "hydra._internal.utils._internal")  # private_api.py imports torch
    ]
    assert refused == []


PUBLIC = {"_asdict", "_replace", "_fields", "_exit", "_getframe", "_run_finalizers", "_target_"}
"""Names with a leading underscore of Python itself, and a key of Hydra."""


def foreign_private_names(file: Path) -> Iterator[str]:
    """Private names that a file imports from a library, or uses of another object than `self` without defining them."""
    nodes = nodes_of(file)
    own = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)} | PUBLIC
    own |= {node.target.id for node in nodes if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)}
    attributes = [node for node in nodes if isinstance(node, ast.Attribute) and is_private(node.attr)]
    of_self = [node for node in attributes if ast.unparse(node.value) in ("self", "cls")]
    own |= {node.attr for node in of_self if isinstance(node.ctx, ast.Store)}
    yield from (ast.unparse(node) for node in attributes if node not in of_self and node.attr not in own)
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("imagenet_opt"):
            names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            yield from (f"{node.module}.{name}" for name in names if is_private(name))


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def test_no_file_imports_itself_through_others() -> None:
    names = {file: ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts) for file in PACKAGE.rglob("*.py")}
    modules = {name.removesuffix(".__init__") for name in names.values()}
    graph = {
        name: {module for module in imported(file) if module in modules and module != name}
        for file, name in names.items()
        if not name.endswith("__init__")
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a circle: {' -> '.join(error.args[1])}")
