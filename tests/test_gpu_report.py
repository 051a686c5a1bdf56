"""The report of tests/gpu/run.sh about finished and missing parts. These tests need no GPU."""

import json
import os
import re
import subprocess
import tomllib
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import numpy as np
import pytest
import yaml

from imagenet_opt.data.index.folder_index import scan_split
from imagenet_opt.data.storage.store import FolderStore
from imagenet_opt.display.table import Column, Table
from imagenet_opt.display.terminal_table import strict_json
from imagenet_opt.study.request import read_study
from imagenet_opt.study.steps.compare import compare
from imagenet_opt.study.steps.losses import Losses
from imagenet_opt.study.steps.plan import Plan, StepsFile, Study
from imagenet_opt.study.steps.table import tables
from imagenet_opt.study.steps.turn import Speeds
from tests.gpu import first, needed, repeated, report, small_card
from tests.processes import Forked
from tests.study.studies import small_request, speed

ROOT = Path(__file__).parents[1]
SUMMARY = {"steps": 400, "throughput/images_per_second": 2700.0, "gpu/utilization_percent": 98.0}
TESTS = """<testsuites><testsuite>
<testcase classname="a" name="test_the_step_never_waits_for_the_device"/>
<testcase classname="a" name="two"><failure/></testcase>
<testcase classname="a" name="three"><skipped/></testcase>
</testsuite></testsuites>"""
FIRST = {
    "fork": {"is_region_decode": True, "ms": 1.2},
    "resize": {"num_crops": 384, "ms": 2.5},
    "ema": {"error": "no such callback"},
    "steps": {"compiled": {"images_per_second": 950.0, "gib": 17.5}},
}
TRIAL = {"name": "batch 512", "status": 0, "seconds": 61.2, "images_per_second": 900.0, "peak_gib": 21.5}
CUT = {"name": "max-autotune", "status": None, "seconds": 90.0, "images_per_second": None, "peak_gib": None}
SMALL_CARD = [TRIAL | {"said": ["out of memory: a|b", "halved"]}, CUT | {"said": ["compiling"]}]
SLOW_TESTS = '<testsuites><testsuite><testcase classname="a" name="four"/></testsuite></testsuites>'


def ladder(**rates: float) -> list[Table]:
    """The tables of a study of three rounds. rates: row -> median images/s of the network alone."""
    file = StepsFile.model_validate({"order": "cumulative", "steps": [{"name": "mixed"}, {"name": "graph"}]})
    request = replace(small_request("ladder", Path()), title="Ladder", repeats=3)
    plan = Plan(file, (), batch_size=128, has_gpu=True, mixed="bf16-mixed")
    speeds = Speeds(plan.rows())
    for name, alone in rates.items():
        speeds.turns[name] = [speed(alone * mood, 0.9 * alone * mood, busy=0.91) for mood in (0.5, 1.0, 1.2)]
    return tables(Study(plan, request, speeds.rows, cold=False), compare(speeds, Losses()))


def write_study(out: Path, name: str, *tables: Table) -> None:
    (out / name).mkdir(exist_ok=True)
    content = {"command": f"study {name}", "tables": [asdict(table) for table in tables]}
    (out / name / "study.json").write_text(strict_json(content))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    write_study(tmp_path, "short_ladder", *ladder(start=800.0, mixed=3000.0, graph=2900.0))
    write_study(tmp_path, "anatomy", Table("Step", (Column("kind"), Column("ms", "{:.1f}")), (("conv|x", 12.34),)))
    for run in ("run", "cifar10"):
        (tmp_path / run).mkdir()
    (tmp_path / "run/summary.json").write_text(json.dumps(SUMMARY))
    (tmp_path / "cifar10/metrics.csv").write_text("step,epoch,val/acc1\n97,0,0.51\n194,1,0.9431\n291,2,0.9375\n")
    (tmp_path / "quick_tests.xml").write_text(TESTS)
    (tmp_path / "slow_tests.xml").write_text(SLOW_TESTS)
    (tmp_path / "images.json").write_text('{"num_files": 150, "num_links": 51300, "is_drawn": false}')
    (tmp_path / "parts.txt").write_text("quick_tests 1 90\nrun 2 9\nrun 0 60\nshort_ladder 124 99\n")
    (tmp_path / "first.json").write_text(json.dumps(FIRST))
    (tmp_path / "small_card.json").write_text(json.dumps(SMALL_CARD))
    return tmp_path


def reported(out: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """gpu.json after a report, and (value, verdict) by the name of a figure."""
    report.main(out)
    content = json.loads((out / "gpu.json").read_text())
    return content, {figure["what"]: (figure["value"], figure["verdict"]) for figure in content["figures"]}


def test_figures_are_compared_with_their_aims(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content, figures = reported(out)
    assert {what: figure for what, figure in figures.items() if figure[0] is not None} == {
        "first: region decode in a forked worker": (1.0, "pass"),
        "first: resize kernel, 384 crops, ms": (2.5, "FAIL"),
        "first: step, compiled, images/s": (950.0, ""),
        "first: step, compiled, GiB": (17.5, ""),
        "quick_tests: steps that read nothing back from the device": (0.5, "FAIL"),
        "short_ladder: network alone, start, images/s": (800.0, ""),
        "short_ladder: network alone, mixed, images/s": (3000.0, ""),
        "short_ladder: that over the start": (3.75, "pass"),
        "short_ladder: end to end, mixed, images/s": (2700.0, ""),
        "short_ladder: that over its network alone": (0.9, "FAIL"),
        "short_ladder: GPU busy end to end, by its kernels": (0.91, ""),
        "run: a whole run of train.py, images/s": (2700.0, ""),
        "run: that over short_ladder's network alone, graph": (2700 / 2900, "FAIL"),
        "run: GPU busy, by NVML": (0.98, ""),
        "cifar10: best top-1 of validation": (0.9431, "pass"),
    }
    assert content["cifar10_curve"] == [[97, 0.51], [194, 0.9431], [291, 0.9375]]
    statuses = {"test_the_step_never_waits_for_the_device": "passed", "two": "failure", "three": "skipped"}
    assert content["tests"] == {f"a::{name}": status for name, status in (statuses | {"four": "passed"}).items()}
    assert content["parts"] == {
        "first": "not run, `run.sh --only first OUT` runs it",
        "quick_tests": "failed, status 1, 90 s",
        "small_card": "not run, `run.sh --only small_card OUT` runs it",
        "run": "done, 60 s",
        "anatomy": "not run, `run.sh --only anatomy OUT` runs it",
        "short_ladder": "out of time, the same command resumes, 99 s",
        "slow_tests": "not run, `run.sh --only slow_tests OUT` runs it",
        "ladder": "not run, `run.sh --only ladder OUT` runs it",
        "cifar10": "not run, `run.sh --cifar10 OUT CIFAR10` runs it",
    }
    page = (out / "gpu.md").read_text()
    assert page == capsys.readouterr().out[:-1]
    for line in (
        "| short_ladder: that over the start | 3.75 x | 3.00 x | pass |",
        "| short_ladder: that over its network alone | 90.0% | 97.0% | FAIL |",
        "| first: resize kernel, 384 crops, ms | 2.50 | 2.00 | FAIL |",
        "| batch 512 | done, 61 s | 900 | 21.5 | out of memory: a\\|b<br>halved |",
        "| max-autotune | cut short, 90 s | - | - | compiling |",
        "| cifar10: best top-1 of validation | 94.31% | 94.00% | pass |",
        "| 194 | 94.31% |",
        "| conv\\|x | 12.3 |",
        "| a::two | failure |",
    ):
        assert f"\n{line}\n" in page
    assert "150 JPEGs under 51300 names" in page and "| mixed | 800 -> 3,000 | 3.75 x |" in page


def test_a_missing_part_has_no_verdict(tmp_path: Path) -> None:
    content, figures = reported(tmp_path)
    assert set(figures.values()) == {(None, "not run")}
    assert all(status.startswith("not run, `run.sh") for status in content["parts"].values())
    assert "| cifar10: best top-1 of validation | - | 94.00% | not run |" in (tmp_path / "gpu.md").read_text()


def test_the_whole_ladder_takes_precedence_over_the_short_ladder(out: Path) -> None:
    write_study(out, "ladder", *ladder(start=800.0))
    content, _ = reported(out)
    (over_start,) = (figure for figure in content["figures"] if figure["what"] == "ladder: that over the start")
    assert (over_start["value"], over_start["aim"], over_start["verdict"]) == (1.0, 3.0, "FAIL")
    assert set(content["studies"]) == {"ladder", "short_ladder", "anatomy"}
    page = (out / "gpu.md").read_text()
    assert page.count("### Ladder: network alone") == 2 and "### What each row sets" in page


def test_a_whole_run_is_compared_with_the_last_row_of_the_short_ladder(out: Path) -> None:
    """This row trains with the options of the run. Faster rows of other ladders do not count."""

    def share() -> tuple[float | None, str]:
        figures = reported(out)[1].items()
        (figure,) = (figure for what, figure in figures if what.startswith("run: that over short_ladder"))
        return figure

    write_study(out, "ladder", *ladder(start=800.0, mixed=9000.0, graph=8000.0))
    assert share() == (2700 / 2900, "FAIL")
    write_study(out, "short_ladder", *ladder(start=800.0, mixed=3000.0))
    assert share() == (None, "not run")


def test_links_to_a_few_files_make_an_epoch(images_root: Path, tmp_path: Path) -> None:
    left_over = tmp_path / "cache/new_images/class0"  # of a killed process
    left_over.mkdir(parents=True)
    (left_over / "00000_image000.JPEG").touch()
    repeated.main(tmp_path, 100, images_root / "train")  # 39 files, three times
    index = scan_split(tmp_path / "cache", "images")
    assert len(index) == 117 and index.classes == ("class0", "class1", "class2")
    original = (images_root / "train/class1/image003.JPEG").read_bytes()
    copies = [i for i in range(len(index)) if index.path(i).endswith("class1/00002_image003.JPEG")]
    assert FolderStore(index).read_many(np.array(copies)) == [original]
    counts = json.loads((tmp_path / "images.json").read_text())
    assert (counts["num_files"], counts["num_links"]) == (39, 117)
    repeated.main(tmp_path, 999, images_root / "train")  # keeps the existing links
    assert len(scan_split(tmp_path / "cache", "images")) == 117


def test_all_dependencies_of_a_run_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """run.sh does not log to W&B, and nobody watches its runs."""
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    names = {re.split(r"[ ;<>=]", dependency)[0] for dependency in dependencies}
    assert names - {"wandb", "wandb-workspaces", "plotext"} <= {
        package.partition("==")[0] for package in needed.MODULES.values()
    }
    monkeypatch.setattr(needed, "MODULES", {"json": "json", "there.is.none": "no-such-package"})
    assert needed.missing() == ["  no-such-package: No module named 'there'"]


def test_the_ladders_have_steps_of_the_shipped_study() -> None:
    """So that results of a row apply to the shipped study too."""
    steps = yaml.safe_load((ROOT / "conf/study/ladder.yaml").read_text())["steps"]
    known = {word for step in steps for word in step.get("overrides", [])}
    for name in report.LADDERS:
        _, file = read_study(str(ROOT / f"tests/gpu/{name}.yaml"))
        ladder = StepsFile.model_validate(file.model_extra)
        plan = Plan(ladder, (), batch_size=128, has_gpu=True, mixed="bf16-mixed")
        assert {word for row in plan.rows() if row.step for word in row.own} <= known
        assert "callbacks.acceleration.cuda_graph=true" in plan.rows()[-1].overrides, "as run.sh trains"


def test_probes_without_a_gpu(tmp_path: Path) -> None:
    results = first.measure(tmp_path / "first.json", 2, ["machine", "fork", "resize", "two_sizes", "ema"])
    assert not [name for name in results if "error" in results[name]]
    assert json.loads((tmp_path / "first.json").read_text()) == results
    assert results["resize"]["largest_difference"] < 0.02
    assert results["fork"]["is_region_decode"] and results["two_sizes"]["left_out"] == "needs a GPU"


def test_after_a_failed_probe_the_others_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(num_images: int) -> dict[str, Any]:
        raise RuntimeError("no kernel image")

    monkeypatch.setitem(first.PROBES, "resize", broken)
    results = first.measure(tmp_path / "first.json", 2, ["resize", "two_sizes"])
    assert "no kernel image" in results["resize"]["error"] and "left_out" in results["two_sizes"]


def test_a_trial_is_summarised_by_its_lines_about_memory_and_compiling(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    log.write_text("begun\nacceleration: not compiled\n\nout of memory (x)\nacceleration: not compiled\nended\n")
    assert small_card.telling(log) == ("acceleration: not compiled", "out of memory (x)")
    log.write_text("begun\nsegmentation fault\n\n")
    assert small_card.telling(log) == ("segmentation fault",)


@pytest.mark.slow
def test_a_trial_on_a_small_card_is_a_separate_run(
    images_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forked(command: list[str], *, stdout: IO[str], timeout: float, **_: Any) -> subprocess.CompletedProcess[str]:
        process = Forked(command, stdout=stdout, env=os.environ)
        try:
            return subprocess.CompletedProcess(command, process.wait(timeout))
        finally:
            process.kill()

    monkeypatch.setattr(small_card, "subprocess", SimpleNamespace(**vars(subprocess) | {"run": forked}))
    tiny = ["trainer.max_steps=2", "model.name=resnet10t", "data.image_size=32", "data.batch_size=4"]
    overrides = [*tiny, f"data.root={images_root}", "data.num_workers=0", "logger=csv", "trainer.limit_val_batches=1"]
    done = small_card.run("tiny", tmp_path / "trial", overrides, seconds=120)
    assert (done.name, done.status) == ("tiny", 0)
    assert done.images_per_second is not None and done.peak_gib is not None
    assert any("acceleration:" in line for line in done.said)
    assert small_card.run("cut", tmp_path / "cut", overrides, seconds=0.5).status is None


def test_a_folder_without_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no images in the class folders"):
        repeated.repeat(tmp_path, tmp_path / "images", 10)
