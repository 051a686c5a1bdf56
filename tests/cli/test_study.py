import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from imagenet_opt.cli import study
from imagenet_opt.cli.study import parse, write_outputs
from imagenet_opt.display.table import Column, Table
from imagenet_opt.display.terminal_table import about
from imagenet_opt.errors import ConfigError, RunFolderError
from imagenet_opt.file_lock import lock_file
from imagenet_opt.training.folder_lock import FILE

MINE = """
title: A trial
kind: steps
order: cumulative
steps:
  - name: channels_last
    overrides: [callbacks.acceleration.channels_last=true]
  - name: on a GPU
    needs: gpu
    overrides: [data.copies=pinned]
"""
TINY = ["data=demo", "data.num_train=64", "data.num_val=16", "data.image_size=32", "data.batch_size=4"]
TINY += ["data.num_workers=0", "model.name=test_resnet", "trainer.precision=32-true", "logger=csv"]


def test_a_folder_in_which_another_process_works_is_refused(tmp_path: Path) -> None:
    held = lock_file(tmp_path / FILE)
    with pytest.raises(RunFolderError, match=rf"{tmp_path}.*--folder FOLDER$"):
        study.main(["data=demo", "--folder", str(tmp_path)])
    held.release()


def test_files_are_json_without_infinities_and_say_when_they_cannot_be_written(tmp_path: Path) -> None:
    table = Table("A study", (Column("step"),), (("start",),), data={"low": math.nan, "high": math.inf, "ratio": 1.5})
    request, facts = parse(["study=read", "--folder", str(tmp_path)]), about("imagenet-opt study")
    write_outputs([table], request, facts)
    written = json.loads((tmp_path / "study.json").read_text(), parse_constant=pytest.fail)
    assert written["tables"][0]["data"] == {"low": None, "high": None, "ratio": 1.5}
    with pytest.raises(ConfigError, match=r"--folder .*gone"):
        write_outputs([table], replace(request, folder=tmp_path / "gone"), facts)


@pytest.mark.slow
def test_a_study_measures_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(MINE)
    words = ["study=mine.yaml", *TINY, "--repeats", "2", "--seconds", "0.1", "--parity", "0", "--folder", "kept"]
    study.main(words)
    table, full, details = json.loads(Path("kept/study.json").read_text())["tables"]
    rows = {row[0]: row for row in table["rows"]}
    assert list(rows) == ["start", "channels_last"] == [row[0] for row in full["rows"]]
    assert len(details["left_out"]) == 1 and "on a GPU" in details["left_out"][0]
    assert rows["channels_last"][2] > 0
    data = {row["name"]: row for row in table["data"]["rows"]}
    assert len(data["start"]["turns"]) == len(data["channels_last"]["turns"]) == 2
    assert data["channels_last"]["overrides"] == ["callbacks.acceleration.channels_last=true"]
    markdown, page = Path("kept/study.md").read_text(), Path("kept/study.html").read_text()
    assert "| channels_last |" in markdown and "imagenet-opt study" in markdown
    assert "Plotly.newPlot" in page and "channels_last" in page
    measured = Path("kept/measured.jsonl").read_text()
    again, *_ = study.tables_of(parse(words))
    assert Path("kept/measured.jsonl").read_text() == measured
    assert [list(row) for row in again.rows] == table["rows"]
