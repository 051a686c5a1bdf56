"""Who may import whom; see CONTRIBUTING.md."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "src/imagenet_opt"
CALLBACKS = REPOSITORY / "callbacks"
FILES = sorted([*PACKAGE.rglob("*.py"), *CALLBACKS.glob("*.py"), REPOSITORY / "train.py"])
MAY_USE_LIGHTNING = ("cli/", "run/", "data/datamodule.py", "model/classifier.py")


def imported(file: Path) -> Iterator[str]:
    """Full dotted names of all modules that a file imports, also inside functions."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            yield node.module or ""


def test_all_files_are_seen() -> None:
    assert len(FILES) > 40
    assert REPOSITORY / "train.py" in FILES


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(REPOSITORY)))
def test_imports_stay_within_the_walls(file: Path) -> None:
    inside = file.relative_to(PACKAGE).as_posix() if file.is_relative_to(PACKAGE) else ""
    for module in imported(file):
        top = module.split(".")[0]
        if inside:
            assert top != "callbacks"
        if file.parent == CALLBACKS:
            assert top != "callbacks", "callbacks do not know each other"
        if inside.startswith("data/"):
            assert not module.startswith(("imagenet_opt.model", "imagenet_opt.cli"))
        if inside.startswith("model/"):
            assert not module.startswith(("imagenet_opt.data", "imagenet_opt.cli", "imagenet_opt.measure"))
        if inside.startswith("measure/"):
            assert not module.startswith(("imagenet_opt.data", "imagenet_opt.model", "imagenet_opt.cli"))
        if top in ("hydra", "omegaconf"):
            assert inside.startswith("cli/") or file.name == "train.py"
        if top == "lightning":
            assert not inside or inside.startswith(MAY_USE_LIGHTNING)
