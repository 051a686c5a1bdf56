"""The charts of the workspace; tests/test_train.py compares them with the metrics of a run."""

import sys

import pytest

from imagenet_opt.cli.dashboard import SECTIONS, SWEEP, main, workspace
from imagenet_opt.errors import ConfigError


def test_without_its_package_the_command_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb_workspaces.reports.v2", None)
    with pytest.raises(ConfigError, match=r"imagenet-opt\[dashboard\]"):
        main(["--entity", "me"])


def test_the_workspace_has_each_chart_and_compares_the_runs_of_a_sweep() -> None:
    """The specification is what W&B's own package would send."""
    spec = workspace("me", "p")._to_model().spec.model_dump(by_alias=True)
    sections = {section["name"]: section["panels"] for section in spec["section"]["panelBankConfig"]["sections"]}
    assert [*sections] == [*SECTIONS, "Sweep"]
    drawn = {name: [panel["config"]["metrics"] for panel in sections[name]] for name in SECTIONS}
    assert drawn == {name: [[metric] for metric in metrics] for name, metrics in SECTIONS.items()}
    chart, table = sections["Sweep"]
    assert [column["accessor"] for column in chart["config"]["columns"]] == [f"summary:{name}" for name in SWEEP]
    assert table["viewType"] == "Run Comparer"
