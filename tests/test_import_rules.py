"""Who may import whom; see CONTRIBUTING.md."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "src/imagenet_opt"
CALLBACKS = REPOSITORY / "callbacks"
FILES = sorted([*PACKAGE.rglob("*.py"), *CALLBACKS.glob("*.py"), REPOSITORY / "train.py"])
NEVER_IMPORTS = {
    "data": ("model", "cli"),
    "model": ("data", "cli", "measure"),
    "measure": ("data", "model", "cli"),
}
MAY_USE_LIGHTNING = ("cli/", "run/", "data/datamodule.py", "model/classifier.py")


def imported(file: Path) -> Iterator[str]:
    """Full dotted names of all modules that a file imports, also inside functions."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")


def test_all_files_are_seen() -> None:
    assert len(FILES) > 40
    assert REPOSITORY / "train.py" in FILES


def may_import(file: Path, module: str) -> bool:
    """Whether the rules of CONTRIBUTING.md allow `file` to import `module`."""
    inside = file.relative_to(PACKAGE).as_posix() if file.is_relative_to(PACKAGE) else ""
    folder, top = inside.partition("/")[0], module.split(".")[0]
    refused = tuple(f"imagenet_opt.{name}" for name in NEVER_IMPORTS.get(folder, ()))
    if top == "callbacks":
        return file == REPOSITORY / "train.py"
    if top in ("hydra", "omegaconf"):
        return folder == "cli" or file.name == "train.py"
    if top == "lightning":
        return not inside or inside.startswith(MAY_USE_LIGHTNING)
    return not module.startswith((".", *refused))


def test_imports_stay_within_the_walls() -> None:
    refused = [
        f"{file.relative_to(REPOSITORY)} imports {module}"
        for file in FILES
        for module in imported(file)
        if not may_import(file, module)
    ]
    assert refused == []


@pytest.mark.parametrize(
    ("file", "module"),
    [
        (PACKAGE / "data/loader.py", "imagenet_opt.model.network"),
        (PACKAGE / "data/loader.py", ".batch"),
        (PACKAGE / "model/classifier.py", "imagenet_opt.data.batch"),
        (PACKAGE / "measure/stats/rate.py", "imagenet_opt.cli.main"),
        (PACKAGE / "measure/stats/rate.py", "lightning"),
        (PACKAGE / "run/stop/signals.py", "omegaconf"),
        (PACKAGE / "config/build.py", "callbacks.mixing"),
        (CALLBACKS / "mixing.py", "callbacks.throughput"),
        (CALLBACKS / "mixing.py", "hydra"),
    ],
)
def test_imports_across_the_walls_are_found(file: Path, module: str) -> None:
    assert not may_import(file, module)
