"""The command as a user meets it, what its rows load, and what it says of rows that there cannot be."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from imagenet_opt.bench import plan as bench_plan
from imagenet_opt.bench.job import CEILING, OWN, REGION, WORKER, Job
from imagenet_opt.bench.own_loaders import Ours, _crops
from imagenet_opt.bench.peers import PEERS
from imagenet_opt.bench.plan import Plan, make_plan, measure
from imagenet_opt.bench.result import Report, as_json, data_facts, method, print_report
from imagenet_opt.bench.turn import Turn, check_peer_batch, run_turn, write_packed
from imagenet_opt.cli.bench import Options, main, parse
from imagenet_opt.cli.mistakes import report_mistakes
from imagenet_opt.data.batch import RaggedBatch
from imagenet_opt.data.decode.region_codec import region_codec
from imagenet_opt.data.index.folder_index import FileIndex, open_split
from imagenet_opt.data.index.shard_index import ShardStore, open_shards
from imagenet_opt.data.options import LoaderOptions
from imagenet_opt.errors import BatchTooLarge, ConfigError, DataError, DatasetNotFound
from imagenet_opt.measure.stats.rounds import Rounds, TurnFailed
from imagenet_opt.pack.pack import pack
from imagenet_opt.pack.plan import PackOptions
from tests.conftest import loading

HOW = loading(num_workers=1)


@pytest.fixture
def index(images_root: Path, tmp_path: Path) -> FileIndex:
    return open_split(images_root, "train", tmp_path)


@pytest.fixture
def job(index: FileIndex) -> Job:
    return Job(
        side=WORKER,
        index=index,
        loading=HOW,
        passes=2,
        num_workers=0,
        prefetch_factor=2,
        num_warmup=2,
        num_batches=3,
    )


def plan_of(index: Any, how: LoaderOptions = HOW, **changes: Any) -> Plan:
    options: dict[str, Any] = {"against": (), "num_batches": 4, "has_gpu": False, "cache": Path("/nowhere")}
    return make_plan(index, how, **(options | changes))


@pytest.mark.slow
def test_a_run_beside_other_loaders(images_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [f"data.root={images_root}", "data.batch_size=6", "data.image_size=32", "data.num_workers=1"]
    words += ["data.resize_on=device"]
    words += [f"data.cache_dir={tmp_path}/cache", "--batches", "30", "--repeats", "1"]
    main([*words, "--against", "torchvision", "--json", f"{tmp_path}/found.json"])
    said, written = capsys.readouterr(), (tmp_path / "found.json").read_text()
    found = json.loads(written)
    rows = {row["name"]: row for row in found["rows"]}
    assert list(rows) == [REGION, CEILING, "torchvision"]
    assert [row["kind"] for row in found["rows"]] == ["ours", "ceiling", "peer"]
    for row in rows.values():
        assert row["failure"] is None
        assert row["images_per_second"] > 0 and row["interval"] == [row["images_per_second"]] * 2
        assert row["coverage"] == 0 and len(row["rounds"]) == 1 and row["first_batch_seconds"] > 0
    assert {"loader/read_seconds", "loader/decode_seconds", "loader/mb_read", "other_seconds"} <= set(
        rows[REGION]["stages"]
    )
    assert found["images_per_second"] == rows[REGION]["images_per_second"] and found["stages"] == rows[REGION]["stages"]
    assert [(ratio["of"], ratio["to"]) for ratio in found["ratios"]] == [(REGION, CEILING), (REGION, "torchvision")]
    for ratio in found["ratios"]:
        expected = rows[ratio["of"]]["images_per_second"] / rows[ratio["to"]]["images_per_second"]
        assert ratio["ratio"] == pytest.approx(expected) and ratio["verdict"] == "undecided"
    assert found["machine"]["cpu"] and found["machine"]["usable_cpus"] >= 1
    assert {"python", "torch", "torchvision"} <= set(found["versions"]) and found["date"].startswith("20")
    assert found["data"]["files"] == 39 and found["data"]["mean_kb"] > 0 and 24 <= found["data"]["mean_width"] < 60
    assert found["command"].startswith("imagenet-opt bench data.root=")
    assert found["settings"]["timed_batches"] == 30 and found["settings"]["warmup_batches"] == 10
    assert "39 files" in said.out and "region decode / nvImageCodec alone" in said.out
    assert said.err.splitlines() == [f"measuring: round 1 of 1: {name}" for name in rows]
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
def test_what_is_wrong_with_the_arguments_is_said(argv: list[str], message: str) -> None:
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
        (["data.root=ROOT", "data.batch_size=40"], BatchTooLarge, "lower data.batch_size to at most 39"),
    ],
)
def test_what_is_wrong_with_the_data_is_said(
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


@pytest.mark.parametrize(
    ("resize_on", "has_gpu", "against", "sides", "device"),
    [
        ("auto", False, (), [WORKER, REGION, CEILING], "cpu"),
        ("auto", True, (), [REGION, CEILING], "cuda"),
        ("auto", True, ("timm",), [WORKER, REGION, CEILING, "timm"], "cpu"),
        ("worker", False, (), [WORKER], "cpu"),
        ("device", False, ("torchvision",), [REGION, CEILING, "torchvision"], "cpu"),
    ],
)
def test_the_rows_follow_where_images_are_resized(
    resize_on: str, has_gpu: bool, against: tuple[str, ...], sides: list[str], device: str, index: FileIndex
) -> None:
    plan = plan_of(index, replace(HOW, resize_on=resize_on), has_gpu=has_gpu, against=against)
    assert (list(plan.sides), plan.absent, plan.job.device) == (sides, {}, device)


def test_no_epoch_ends_within_a_turn_and_every_worker_has_as_many_batches(
    index: FileIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imagenet_opt.machine.usable_cpus", lambda: 8)
    job = plan_of(index, replace(HOW, num_workers=3, prefetch_factor=4), num_batches=10).job
    assert (job.num_workers, job.num_warmup, job.num_batches) == (3, 12, 12)
    assert len(job.long_index()) == len(job.samples()) == 39 * job.passes
    assert len(job.samples()) // HOW.batch_size >= 12 + 12 + 3 * 4


def test_rows_that_cannot_be_say_why(index: FileIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = PEERS["dali"]._replace(needs="no_such_package.at_all")
    monkeypatch.setitem(PEERS, "dali", gone)
    monkeypatch.setitem(PEERS, "webdataset", PEERS["webdataset"]._replace(needs="json"))
    found = plan_of(index, against=("torchvision", "dali", "webdataset"))
    assert found.absent == {"dali": 'not installed: pip install "imagenet-opt[bench]"'}
    slow = plan_of(index, replace(HOW, added_latency_ms=5.0), against=("torchvision", "webdataset"))
    assert slow.absent == {"webdataset": "not with data.added_latency_ms"}
    narrow = plan_of(index, replace(HOW, max_mb_per_second=5.0), against=("torchvision",))
    assert narrow.absent == {"torchvision": "not with data.max_mb_per_second"}


def test_of_a_large_set_what_is_packed_is_a_part_that_all_rows_read(
    index: FileIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_plan, "MOST_PACKED", 12)
    monkeypatch.setitem(PEERS, "ffcv", PEERS["ffcv"]._replace(needs="json"))
    plan = plan_of(index, against=("ffcv",))
    assert (plan.num_found, plan.job.num_files) == (39, 12)
    everything = {(index.path(i), int(label)) for i, label in enumerate(index.labels)}
    assert len(set(plan.job.samples())) == 12 and set(plan.job.samples()) < everything
    assert plan_of(index, against=("torchvision",)).job.num_files == 39


def test_a_packed_set_is_measured_too_but_not_beside_others(images_root: Path, tmp_path: Path) -> None:
    pack(images_root, tmp_path / "out", PackOptions(shard_mb=0.03))
    index = open_shards(tmp_path / "out" / "train")
    job = plan_of(index).job
    long, store = job.long_index(), ShardStore(index)
    assert len(long) == 39 * job.passes > 39
    assert [long.path(i) for i in (3, 42, 81)] == [index.path(3)] * 3
    assert ShardStore(long).read_many(np.array([45, 38, 39])) == store.read_many(np.array([6, 38, 0]))
    with pytest.raises(ConfigError, match=r"--against needs a folder of image files, but .* \(data.root\) is packed"):
        plan_of(index, against=("timm",))


def test_ours_is_the_training_loader_as_it_hands_over(job: Job) -> None:
    batch = next(iter(Ours(job)))
    assert (batch.images.dtype, tuple(batch.images.shape)) == (torch.uint8, (6, 3, 32, 32))
    ragged = Ours(replace(job, side=REGION))
    first = next(iter(ragged))
    assert isinstance(first, RaggedBatch) and len(first) == 6
    wholly = replace(job, loading=replace(HOW, region_decode=False))
    decoders = [Ours(one).prefetcher.loader.dataset.decoder for one in (wholly, replace(wholly, side=REGION))]
    assert [decoder.region_decode for decoder in decoders] == [False, True], "what its name says"
    assert ragged.drain()["loader/mb_read"] > 0 and ragged.drain() == {"num_workers": 0.0}


def test_the_ceiling_decodes_the_crops_that_ours_does(job: Job) -> None:
    pytest.importorskip("nvidia.nvimgcodec")
    batches = [batch for _, batch in zip(range(3), Ours(replace(job, side=REGION)), strict=False)]
    sizes = [(h, w) for batch in batches for h, w in zip(batch.heights.tolist(), batch.widths.tolist(), strict=True)]
    crops, codec = list(_crops(job, 0)), region_codec()
    assert [(height, width) for _, (_, _, height, width) in crops[: len(sizes)]] == sizes
    assert len(crops) == 78
    (encoded, box), (height, width) = crops[0], sizes[0]
    first = batches[0].pixels[: 3 * height * width].view(height, width, 3).numpy()
    np.testing.assert_array_equal(codec.decode(codec.parse(encoded), box), first)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, peer in PEERS.items() if not peer.latency])
def test_every_peer_that_is_installed_gives_the_images_that_are_asked_for(name: str, job: Job, tmp_path: Path) -> None:
    """The others are asked below, in this process."""
    if not PEERS[name].installed:
        pytest.skip(f"{name} is not installed: {PEERS[name].install}")
    job = replace(job, side=name, num_workers=1, num_warmup=1, num_batches=2, packed=tmp_path / "packed")
    if PEERS[name].packs:
        write_packed(job)
        written = {path: path.stat().st_mtime_ns for path in job.packed.iterdir()}
        write_packed(job)
        assert written == {path: path.stat().st_mtime_ns for path in job.packed.iterdir()} != {}
    found = run_turn(job)
    assert (found.num_images, found.stages) == (12, {})
    assert found.seconds > 0 and found.first_batch_seconds > 0


@pytest.mark.parametrize(
    ("images", "found"),
    [
        (torch.zeros(6, 3, 32, 32), "float32 (6, 3, 32, 32)"),
        (torch.zeros(6, 3, 48, 32, dtype=torch.uint8), "uint8 (6, 3, 48, 32)"),
        (np.zeros((5, 32, 32, 3), np.uint8), "uint8 (5, 32, 32, 3)"),
    ],
)
def test_a_peer_that_does_other_work_is_no_comparison(images: Any, found: str, job: Job) -> None:
    with pytest.raises(TurnFailed, match=re.escape(f"gave {found}, not uint8 images of 32 x 32 in batches of 6")):
        check_peer_batch(images, job)
    check_peer_batch(torch.zeros(6, 3, 32, 32, dtype=torch.uint8), job)
    check_peer_batch(np.zeros((6, 32, 32, 3), np.uint8), job)


@pytest.mark.filterwarnings("ignore:Exception ignored in.*FileIO")  # timm leaves its files to the collector
def test_added_latency_is_slept_at_every_open(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    slow = replace(job, loading=replace(HOW, added_latency_ms=250.0))
    for name in (name for name, peer in PEERS.items() if peer.latency):
        images = next(iter(PEERS[name].function()(slow)))
        check_peer_batch(images, job)
        assert slept == [0.25] * 6
        slept.clear()


@pytest.mark.slow
def test_a_turn_that_dies_is_a_row_with_its_reason_and_leaves_nothing(job: Job, tmp_path: Path) -> None:
    broken = replace(job, side="torchvision", packed=tmp_path / "packed")
    with pytest.raises(TurnFailed, match=r"^AttributeError: .* has no attribute 'pack'"):
        write_packed(broken)
    assert list(tmp_path.glob("*packed*")) == list(tmp_path.glob("new_*")) == []


def test_mistakes_of_the_user_in_our_own_turn_arrive_as_they_were_raised(job: Job, tmp_path: Path) -> None:
    gone = replace(job.index, folder=tmp_path)  # no file is there any more
    with pytest.raises(DataError, match=r"cannot read .*image\d+\.JPEG: No such file"):
        run_turn(replace(job, index=gone, loading=replace(HOW, on_bad_sample="raise")))


def test_ours_that_dies_ends_the_run(index: FileIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(job: Job) -> Turn:
        raise TurnFailed("killed by signal 9")

    monkeypatch.setattr(bench_plan, "run_turn", die)
    with pytest.raises(DataError, match=r"the loader ended \(worker resize\): killed by signal 9"):
        measure(plan_of(index, replace(HOW, resize_on="worker")), repeats=1)


def test_a_thread_that_dies_ends_the_turn() -> None:
    code = (
        "import threading, time; from imagenet_opt.probe.isolated_process import _end_with\n"
        "threading.excepthook = _end_with\n"
        "def fail(): raise ValueError('in a thread')\n"
        "threading.Thread(target=fail).start(); time.sleep(60)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50)
    assert done.returncode == 1 and done.stderr.endswith("ValueError: in a thread\n")


RATES = {
    WORKER: [100.0, 50.0, 200.0, 110.0, 90.0, 100.0],
    REGION: [180.0, 90.0, 360.0, 180.0, 180.0, 180.0],
    CEILING: [200.0, 100.0, 400.0, 200.0, 200.0, 200.0],
    "torchvision": [50.0, 25.0, 100.0, 55.0, 45.0, 50.0],
    "timm": [100.0, 51.0, 190.0, 111.0, 90.0, 99.0],
    "spdl": [70.0],
}


@pytest.fixture
def report(index: FileIndex) -> Report:
    """Six rounds, in which the machine was slow once and fast once; one peer that failed in its second."""
    stages = {"loader/read_seconds": 0.01, "loader/decode_seconds": 0.04, "num_workers": 1.0, "loader/mb_read": 2.5}
    turns = {
        name: [Turn(600, 600 / rate, 0.5, stages if name in OWN else {}) for rate in rates]
        for name, rates in RATES.items()
    }
    plan = replace(
        plan_of(index, against=("torchvision", "timm")),
        sides=tuple(RATES),
        absent={name: f"not installed: {PEERS[name].install}" for name in ("dali", "ffcv")},
    )
    rounds = Rounds(turns, {"spdl": "RuntimeError: out of threads"})
    facts = {"cpu": "a CPU", "usable_cpus": 2, "memory_gib": 8.0, "gpu": None, "busy_percent_before": 35.0}
    return Report(plan, rounds, facts, data_facts(plan))


def test_ratios_are_of_geometric_means_and_intervals_say_what_they_allow(report: Report) -> None:
    found = {(ratio["of"], ratio["to"]): ratio for ratio in as_json(report, ["imagenet-opt", "bench"])["ratios"]}
    assert len(found) == 5
    for (of, to), ratio in found.items():
        each = np.array(RATES[of]) / np.array(RATES[to])
        assert ratio["ratio"] == pytest.approx(np.exp(np.log(each).mean()))
        low, high = ratio["interval"]
        assert low * high == pytest.approx(ratio["ratio"] ** 2), "the same factor to both sides"
        assert ratio["coverage"] == 0.95
    assert len({round(ratio["interval"][1] / ratio["ratio"], 6) for ratio in found.values()}) == 1, "one noise for all"
    assert found[WORKER, "torchvision"]["verdict"] == "faster"
    assert found[WORKER, "timm"]["verdict"] == "undecided"
    assert found[REGION, CEILING]["ratio"] == pytest.approx(0.9)


def test_json_has_every_row_also_those_that_were_not_measured(report: Report) -> None:
    rows = {row["name"]: row for row in as_json(report, ["imagenet-opt", "bench"])["rows"]}
    assert list(rows) == [WORKER, REGION, CEILING, "torchvision", "timm", "dali", "ffcv", "spdl"]
    assert rows["spdl"]["failure"] == "RuntimeError: out of threads"
    assert rows["ffcv"]["failure"].startswith("not installed: apt install")
    assert rows["ffcv"]["images_per_second"] is rows["spdl"]["images_per_second"] is None
    assert rows[WORKER]["rounds"] == pytest.approx(RATES[WORKER]) and rows[WORKER]["images_per_second"] == 100
    assert rows[WORKER]["stages"]["other_seconds"] == pytest.approx(6 / 100 - 0.01 - 0.04)
    json.dumps(list(rows.values()), allow_nan=False)


def test_no_stage_takes_less_than_no_time(report: Report) -> None:
    overlapping = {"loader/read_seconds": 0.05, "loader/decode_seconds": 0.04, "num_workers": 1.0}
    report.rounds.results[WORKER] = [Turn(600, 6.0, 0.5, overlapping)]
    assert report.stages(WORKER)["other_seconds"] == 0.0
    assert "medians with 95 % intervals from order statistics" in method(report)


def test_the_tables_name_what_was_measured_and_what_was_not(report: Report, capsys: pytest.CaptureFixture[str]) -> None:
    print_report(report)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    text = " ".join(lines)
    for words in (
        "worker resize 100 50 to 200 (97 %) 0.5 s uint8 images of 32 x 32, resized by the workers",
        "worker resize / timm 1.01 0.95 to 1.07 (95 %) undecided",
        "worker resize / torchvision 2.00 1.88 to 2.13 (95 %) faster",
        "region decode / nvImageCodec alone 0.90 0.85 to 0.96 (95 %) slower",
        "waits for bytes, ms 10 10",
        "encoded bytes, MB 2.5 2.5",
        "undecided ratios: more --repeats narrow the intervals",
    ):
        assert words in lines
    assert 'dali - not installed: pip install "imagenet-opt[bench]"' in text
    assert "spdl - RuntimeError: out of threads" in text and "ffcv - not installed: apt install" in text
    assert "a CPU, 2 usable CPUs, 8 GiB, no GPU; 35 % busy before the run" in text
    assert "39 files, mean" in text and f"python {sys.version.split()[0]}" in text


def test_batches_that_were_made_before_are_no_rate(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 100 batches of 6 images of which 90 had been waiting; and of more than two CPUs can write."""
    made_before = {"num_images": 600, "seconds": 1.0, "first_batch_seconds": 0.1, "stages": {}, "num_made": 60}
    impossible = {"num_images": 10**8, "seconds": 1.0, "first_batch_seconds": 0.1, "stages": {}, "num_made": None}
    for told, reason in ((made_before, "only 60 of them were prepared"), (impossible, "CPUs cannot decode more than")):
        monkeypatch.setattr("imagenet_opt.bench.turn.call_apart", lambda function, asked, told=told: told)
        with pytest.raises(TurnFailed, match=f"^not measured: .*{reason}"):
            run_turn(job)
    fine = made_before | {"num_made": 580}
    monkeypatch.setattr("imagenet_opt.bench.turn.call_apart", lambda function, asked: fine)
    assert run_turn(job).images_per_second == 600
