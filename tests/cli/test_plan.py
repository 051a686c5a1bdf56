"""The plan command as a user meets it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imagenet_opt.cli import hydrate
from imagenet_opt.cli.plan import main, parse
from imagenet_opt.errors import ConfigError
from imagenet_opt.pack.pack import pack
from imagenet_opt.pack.plan import PackOptions
from tests.conftest import write_images
from tests.faulty_proxy import faulty_proxy
from tests.object_server import upload


def test_a_recipe_is_planned_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "plan.json"
    flags = ["--price-per-hour", "1.5", "--watts", "150", "--loader-rate", "1500", "--json", str(file)]
    main(["experiment=rn18_ffcv", *flags])
    output, plan = " ".join(capsys.readouterr().out.split()), json.loads(file.read_text())
    assert (plan["total_steps"], plan["published_top1"], plan["reproduced"]) == (20016, 66.9, None)
    assert len(plan["lr"]) == 16 and [phase["image_size"] for phase in plan["phases"]] == [160, 192]
    assert f"energy of the GPU {0.15 * plan['gpu_hours']:.1f} kWh at 150 W" in output
    assert plan["price"] == pytest.approx(1.5 * plan["gpu_hours"])
    assert f"price ${1.5 * plan['gpu_hours']:.2f}" in output and "published top-1 66.9 %" in output
    assert "reproduced here no" in output and "estimate for an A10G" in output


@pytest.mark.slow
def test_a_changed_recipe_promises_no_accuracy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def planned(*words: str) -> tuple[list[str], float | None]:
        main(["experiment=rn18_ffcv", "data.num_workers=3", *words, "--json", f"{tmp_path}/plan.json"])
        plan = json.loads((tmp_path / "plan.json").read_text())
        return plan["changed"], plan["expected_top1"]

    assert planned() == ([], 66.9)
    assert planned("trainer.max_epochs=88") == ([], 72.4)
    assert planned("trainer.max_epochs=4", "~callbacks.resolution_schedule") == (
        ["trainer.max_epochs", "callbacks.resolution_schedule"],
        None,
    )
    output = " ".join(capsys.readouterr().out.split())
    assert "published top-1 none for these epochs, only for 16, 24, 32, 40, 56, 88" in output


def test_the_data_decides_the_steps(images_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = [f"data.root={images_root}", f"data.cache_dir={tmp_path}/cache", "data.batch_size=4"]
    main([*own, "trainer.max_epochs=3", "model=resnet18", "--json", f"{tmp_path}/plan.json"])
    assert json.loads((tmp_path / "plan.json").read_text())["total_steps"] == 3 * (39 // 4)
    assert "it could not be measured: 39 training images are too few" in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_a_url_has_requests_and_their_price(
    images_root: Path, bucket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def planned(url: str, *words: str) -> list[tuple[int, float, float]]:
        own = [f"data.root={url}", f"data.cache_dir={tmp_path}/cache", "data.batch_size=13", "trainer.max_epochs=3"]
        main([*own, "model=resnet18", *words, "--loader-rate", "1e6", "--json", f"{tmp_path}/plan.json"])
        epochs = json.loads((tmp_path / "plan.json").read_text())["requests"]
        return [(each["requests"], each["num_bytes"], each["cached_percent"]) for each in epochs]

    url = upload(images_root, f"{bucket}/in1k")
    files = {split: sorted(images_root.glob(f"{split}/*/*")) for split in ("train", "val")}
    sizes = {split: [file.stat().st_size for file in files[split]] for split in files}
    num_bytes = sum(map(sum, sizes.values()))
    assert planned(url, "data.cache_gb=0") == [(78, num_bytes, 0)] * 2
    output = " ".join(capsys.readouterr().out.split())
    assert f"Requests to {url}" in output and "less than a cent for the requests of all 3 epochs, at $0.0004" in output
    assert planned(url) == [(78, num_bytes, 0), (0, 0, 100)]
    half = sum(sizes["train"][:20])  # of each split
    kept = 20 + int((np.cumsum(sizes["val"]) <= half).sum())
    first, later = planned(url, f"data.cache_gb={(half + 1) / 1e9}")
    assert first[0] == 78 and later[0] == 78 - kept and later[2] == pytest.approx(100 * kept / 78)
    hydrate.main([f"data.root={url}", f"data.cache_dir={tmp_path}/cache"])
    assert planned(url) == [(0, 0, 100)] * 2

    pack(images_root, f"{bucket}/packed", PackOptions(), cache_dir=f"{tmp_path}/cache")
    packed = planned(f"{bucket}/packed", "data.shuffle=block", "data.cache_gb=0")
    assert packed == [(2 * 3, num_bytes, 0)] * 2  # blocks of thirteen of 39 samples


@pytest.mark.slow
def test_the_loader_of_a_url_is_measured_on_the_storage_and_in_the_cache(
    bucket: str, object_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("imagenet_opt.plan.loader_rates.SECONDS", 0.2)
    url = upload(write_images(tmp_path / "images", num_classes=2, per_class=40), f"{bucket}/in1k")
    own = [f"data.root={url}", f"data.cache_dir={tmp_path}/cache", "data.batch_size=8", "data.reads_in_flight=1"]
    own += ["data.num_workers=1", "data.image_size=32", "model=resnet18", "trainer.max_epochs=5"]

    def planned(*words: str) -> dict[str, Any]:
        main([*own, "--rate", "1e9", "--json", f"{tmp_path}/plan.json", *words])
        return json.loads((tmp_path / "plan.json").read_text())

    with faulty_proxy(object_server) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.address)
        proxy.delay_seconds = 0.03
        plan = planned()
        num_requests = sum(path.endswith(".JPEG") for path in proxy.paths)
        output = " ".join(capsys.readouterr().out.split())
        uncached = planned("data.cache_gb=0")
    loader, (first, later) = plan["loader"], plan["phases"]
    rate = loader["by_size"]["32"]
    assert rate["storage"] < 2 / proxy.delay_seconds < rate["cached"]
    assert (first["images_per_second_loaded"], later["images_per_second_loaded"]) == pytest.approx(tuple(rate.values()))
    assert first["hours"] == pytest.approx(80 / rate["storage"] / 3600) == first["epoch_hours"]
    assert later["hours"] == pytest.approx(4 * later["epoch_hours"]) == pytest.approx(4 * 80 / rate["cached"] / 3600)
    assert 0.5 * loader["requests"] <= num_requests <= 2 * loader["requests"]
    assert 0 < loader["kept_bytes"] < loader["num_bytes"]
    assert "from the storage and" in output and "--loader-rate R saves it" in output

    assert uncached["loader"]["by_size"]["32"]["cached"] is None and uncached["loader"]["kept_bytes"] == 0
    assert [phase["num_epochs"] for phase in uncached["phases"]] == [5]


@pytest.mark.slow
def test_the_loader_is_measured_at_the_size_of_each_phase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imagenet_opt.plan.loader_rates.SECONDS", 0.2)
    root = write_images(tmp_path / "images", num_classes=2, per_class=40)
    sizes = [f"callbacks.resolution_schedule.{value}" for value in ("start=32", "end=64", "step=32")]
    own = [f"data.root={root}", f"data.cache_dir={tmp_path}/cache", "data.batch_size=8", "data.num_workers=1"]
    run = ["model=resnet18", "trainer.max_epochs=8", "+callbacks=resolution_schedule", *sizes]
    main([*own, *run, "--rate", "1e9", "--json", f"{tmp_path}/plan.json"])
    plan = json.loads((tmp_path / "plan.json").read_text())
    phases = plan["phases"]
    assert [phase["image_size"] for phase in phases] == [32, 64]
    for phase in phases:  # so fast a GPU waits for any loader
        hours = phase["steps"] * 8 / phase["images_per_second_loaded"] / 3600
        assert phase["hours"] == pytest.approx(hours)
    assert [run["option"] for run in plan["packed"]] == ["for=224", "for=176"]
    for run in plan["packed"]:
        assert run["gpu_hours"] == pytest.approx(plan["gpu_hours"] / run["speedup"])


@pytest.mark.parametrize("name", ["rate", "loader-rate", "price-per-hour", "watts"])
def test_numbers_of_zero_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"--{name} 0 must be a number above 0"):
        parse([f"--{name}", "0"])
