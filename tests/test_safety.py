"""No source unpickles a file or makes code of text. See docs/trust.md."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
FOLDERS = (REPOSITORY / "src", REPOSITORY / "callbacks")
SOURCES = sorted([*(file for folder in FOLDERS for file in folder.rglob("*.py")), REPOSITORY / "train.py"])


def option(call: ast.Call, name: str) -> Any:
    value = next((keyword.value for keyword in call.keywords if keyword.arg == name), None)
    return value.value if isinstance(value, ast.Constant) else None


OWN_PIPES = ("imagenet_opt/probe/isolated.py",)
"""Files that pickle messages between a process and its parent."""
UNPICKLERS = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "_pickle"}


def offences(file: Path) -> Iterator[str]:
    """Loads of files with code, and code made of text, that ruff's rules (pyproject.toml) do not find."""
    nodes = list(ast.walk(ast.parse(file.read_text())))
    for call in (node for node in nodes if isinstance(node, ast.Call)):
        name = ast.unparse(call.func)
        place = f"{file.name}:{call.lineno} {name}"
        if name in ("compile", "__import__"):
            yield place
        loads = name == "torch.load" or (name.endswith(".fit") and "trainer" in name)
        if loads and option(call, "weights_only") is not True:
            yield f"{place} without weights_only=True"
        if name in ("np.load", "numpy.load") and option(call, "allow_pickle") not in (None, False):
            yield f"{place} with allow_pickle"
    for node in nodes:
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        yield from (f"{file.name}: imports {name}" for name in modules if name.partition(".")[0] in UNPICKLERS)


def test_no_source_unpickles_a_file() -> None:
    checked = [file for file in SOURCES if not str(file).endswith(OWN_PIPES)]
    assert len(checked) == len(SOURCES) - len(OWN_PIPES) > 40
    assert [what for file in checked for what in offences(file)] == []
