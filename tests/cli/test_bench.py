"""The command: its report, its arguments and its error messages."""

import json
import re
from pathlib import Path

import pytest

from imagenet_opt.bench.job import CEILING, REGION
from imagenet_opt.bench.peers import PEERS
from imagenet_opt.cli.bench import Options, main, parse
from imagenet_opt.cli.mistakes import report_mistakes
from imagenet_opt.errors import BatchTooLarge, ConfigError, DatasetNotFound


@pytest.mark.slow
def test_a_run_beside_other_loaders(images_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [f"data.root={images_root}", "data.batch_size=6", "data.image_size=32", "data.num_workers=1"]
    words += ["data.resize_on=device"]
    words += [f"data.cache_dir={tmp_path}/cache", "--batches", "30", "--repeats", "1"]
    main([*words, "--against", "torchvision", "--json", f"{tmp_path}/found.json"])
    printed, written = capsys.readouterr(), (tmp_path / "found.json").read_text()
    report = json.loads(written)
    rows = {row["name"]: row for row in report["rows"]}
    assert list(rows) == [REGION, CEILING, "torchvision"]
    assert [row["kind"] for row in report["rows"]] == ["ours", "ceiling", "peer"]
    for row in rows.values():
        assert row["failure"] is None
        assert row["images_per_second"] > 0 and row["interval"] == [row["images_per_second"]] * 2
        assert row["coverage"] == 0 and len(row["rounds"]) == 1 and row["first_batch_seconds"] > 0
    assert {"loader/read_seconds", "loader/decode_seconds", "loader/mb_read", "other_seconds"} <= set(
        rows[REGION]["stages"]
    )
    assert (
        report["images_per_second"] == rows[REGION]["images_per_second"] and report["stages"] == rows[REGION]["stages"]
    )
    assert [(ratio["of"], ratio["to"]) for ratio in report["ratios"]] == [(REGION, CEILING), (REGION, "torchvision")]
    for ratio in report["ratios"]:
        expected = rows[ratio["of"]]["images_per_second"] / rows[ratio["to"]]["images_per_second"]
        assert ratio["ratio"] == pytest.approx(expected) and ratio["verdict"] == "undecided"
    assert report["machine"]["cpu"] and report["machine"]["usable_cpus"] >= 1
    assert {"python", "torch", "torchvision"} <= set(report["versions"]) and report["date"].startswith("20")
    assert report["data"]["files"] == 39 and report["data"]["mean_kb"] > 0 and 24 <= report["data"]["mean_width"] < 60
    assert report["command"].startswith("imagenet-opt bench data.root=")
    assert report["settings"]["timed_batches"] == 30 and report["settings"]["warmup_batches"] == 10
    assert "39 files" in printed.out and "region decode / nvImageCodec alone" in printed.out
    lines = [line for line in printed.err.splitlines() if not line.startswith("reading the files into memory")]
    assert lines == [f"measuring: round 1 of 1: {name}" for name in rows]
    assert report["data"]["state"].startswith("files ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "found.json"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--repeats", "0"], "--repeats 0 must be from 1 to 1000"),
        (["--batches", "-3"], "--batches -3 must be from 1 to 100000"),
        (["--batches", "9" * 12], "must be from 1 to 100000"),
        (["--batches", "many"], "argument --batches: invalid int value: 'many'"),
        (["--against", "dalli"], "--against dalli: there is no such loader; did you mean dali?"),
        (["--against", "xyz"], "--against xyz: there is no such loader; expected torchvision, "),
        (["--repeat", "3"], "unrecognized arguments: --repeat"),
        (["--json"], "argument --json: expected one argument"),
        (["--json", "/nowhere/found.json"], "--json /nowhere/found.json cannot be written"),
        (["--json", "/"], "--json / cannot be written"),
    ],
)
def test_wrong_arguments_are_named(argv: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse(argv)


def test_overrides_and_options_may_stand_in_any_order() -> None:
    argv = ["data.root=/d", "--batches", "3", "+experiment=aggressive", "--against", "timm,dali,timm", "data.seed=1"]
    overrides = ("data.root=/d", "+experiment=aggressive", "data.seed=1")
    assert parse(argv) == Options(overrides, batches=3, against=("timm", "dali"))
    assert parse(["--against", "all"]).against == tuple(PEERS)
    assert parse([]) == Options()


@pytest.mark.parametrize(
    ("argv", "error", "message"),
    [
        (["data.root=/nowhere"], DatasetNotFound, "no folder /nowhere (data.root)"),
        (["data.root=ROOT", "data.num_workers=some"], ConfigError, "data.num_workers=some"),
        (["data.root=ROOT", "data.batch_size=40"], BatchTooLarge, "set data.batch_size=39 or less"),
    ],
)
def test_wrong_data_is_named(
    argv: list[str], error: type[Exception], message: str, images_root: Path, tmp_path: Path
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        main([*(word.replace("ROOT", str(images_root)) for word in argv), f"data.cache_dir={tmp_path}"])


def test_a_wrong_key_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        report_mistakes(lambda: main(["data.root=/d", "data.batchsize=3"]))
    out, err = capsys.readouterr()
    assert (ended.value.code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("ConfigError: there is no key data.batchsize; did you mean data.batch_size")
