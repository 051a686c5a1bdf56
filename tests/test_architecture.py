"""The diagram in docs/architecture.md shows the present imports.

`python -m tests.test_architecture` updates the diagram.
"""

from pathlib import Path

from tests.test_import_rules import LAYERS, LEVEL, PACKAGE, imported, layer, place

PAGE = Path(__file__).parents[1] / "docs/architecture.md"
BEGIN, END = "```mermaid\n", "```\n"
EVERYWHERE = (
    "errors",
    "machine",
    "atomic_file",
    "file_lock",
    "regular_file",
    "out_of_memory",
    "object_storage",
    "processes",
)
"""Modules that nearly every layer imports; the diagram leaves them out."""


def uses() -> dict[str, set[str]]:
    """Top-level name -> top-level names that its files import."""
    graph: dict[str, set[str]] = {name: set() for name in LEVEL}
    for file in PACKAGE.rglob("*.py"):
        name = layer(place(file))
        if name == "__init__":  # the public functions
            continue
        for module in imported(file):
            if module.startswith("imagenet_opt.") and (other := module.split(".")[1]) in LEVEL and other != name:
                graph[name].add(other)
    return graph


def reached(graph: dict[str, set[str]], name: str) -> set[str]:
    return graph[name].union(*(reached(graph, other) for other in graph[name]))


def drawn() -> str:
    """Mermaid code: a row for each layer, and an arrow for each import that does not follow from other arrows."""
    graph = {name: others - set(EVERYWHERE) for name, others in uses().items() if name not in EVERYWHERE}
    lines = ["flowchart TD"]
    for number, names in enumerate(names for names in LAYERS if names[0] not in EVERYWHERE):
        nodes = (f"    {name}[{name}/]" for name in names)
        lines += [f"  subgraph layer{number}[ ]", "    direction LR", *nodes, "  end"]
    for name, others in graph.items():
        direct = others - set().union(*(reached(graph, other) for other in others))
        lines += [f"  {name} --> {other}" for other in sorted(direct, key=lambda other: (LEVEL[other], other))]
    return "\n".join(lines).replace("export[export/]", "export[export.py]") + "\n"


def parts() -> tuple[str, str, str]:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    picture, _, after = rest.partition(END)
    return before, picture, after


def test_the_diagram_shows_the_imports() -> None:
    assert parts()[1] == drawn(), "run `python -m tests.test_architecture` to update the diagram"


if __name__ == "__main__":
    before, _, after = parts()
    PAGE.write_text(before + BEGIN + drawn() + END + after)
