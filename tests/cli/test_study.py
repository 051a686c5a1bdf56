import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from imagenet_opt.cli import study
from imagenet_opt.cli.study import parse, tables_of, write_outputs
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
TABLE = Table("A study", (Column("step"),), (("start",),), data={"low": math.nan, "high": math.inf, "ratio": 1.5})


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    file = tmp_path / "mine.yaml"
    file.write_text(MINE)
    return file


def test_a_folder_in_which_another_process_works_is_refused(mine: Path, tmp_path: Path) -> None:
    held = lock_file(tmp_path / FILE)
    with pytest.raises(RunFolderError, match=r"another process works in .* another folder with --folder FOLDER$"):
        study.main([f"study={mine}", "data=demo", "--folder", str(tmp_path)])
    held.release()


def test_files_are_json_without_infinities_and_say_when_they_cannot_be_written(tmp_path: Path) -> None:
    facts = about("imagenet-opt study")
    request = parse(["study=read", "--folder", str(tmp_path)])
    write_outputs([TABLE], request, facts)
    written = json.loads((tmp_path / "study.json").read_text(), parse_constant=pytest.fail)
    assert written["tables"][0]["data"] == {"low": None, "high": None, "ratio": 1.5}
    with pytest.raises(ConfigError, match=r"--folder .*gone"):
        write_outputs([TABLE], replace(request, folder=tmp_path / "gone"), facts)


@pytest.mark.slow
def test_a_study_measures_and_resumes(mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = [f"study={mine}", *TINY, "--repeats", "2", "--seconds", "0.1", "--parity", "0", "--folder", "kept"]
    study.main(words)
    found = json.loads(Path("kept/study.json").read_text())
    table, full, details = found["tables"]
    rows = {row[0]: row for row in table["rows"]}
    assert list(rows) == ["start", "channels_last"] == [row[0] for row in full["rows"]]
    assert details["left_out"] == ["Left out, as there is no GPU here: on a GPU."]
    assert rows["channels_last"][2] > 0
    data = {row["name"]: row for row in table["data"]["rows"]}
    assert len(data["start"]["turns"]) == len(data["channels_last"]["turns"]) == 2
    assert data["channels_last"]["overrides"] == ["callbacks.acceleration.channels_last=true"]
    markdown, page = Path("kept/study.md").read_text(), Path("kept/study.html").read_text()
    assert "| channels_last |" in markdown and "imagenet-opt study" in markdown
    assert "Plotly.newPlot" in page and "channels_last" in page
    measured = Path("kept/measured.jsonl").read_text()
    again, *_ = tables_of(parse(words))
    assert Path("kept/measured.jsonl").read_text() == measured
    assert [list(row) for row in again.rows] == table["rows"]
