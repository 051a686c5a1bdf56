"""The command: its report, its arguments and its error messages."""

import json
from pathlib import Path

import pytest

from imagenet_opt.bench.turn import CEILING, REGION
from imagenet_opt.cli.bench import main


@pytest.mark.slow
def test_a_run_beside_another_loader(images_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [f"data.root={images_root}", "data.batch_size=6", "data.image_size=32", "data.num_workers=1"]
    words += ["data.resize_on=device", f"data.cache_dir={tmp_path}/cache", "--batches", "30", "--repeats", "1"]
    main([*words, "--against", "torchvision", "--same-bytes", "--json", f"{tmp_path}/found.json"])
    report = json.loads((tmp_path / "found.json").read_text())
    assert list(report["turns"]) == [REGION, CEILING, "torchvision"] and report["failures"] == {}
    for (turn,) in report["turns"].values():
        assert turn["num_images"] == 180 and turn["seconds"] > 0
    assert {"loader/read_seconds", "loader/decode_seconds"} <= set(report["turns"][REGION][0]["stages"])
    assert [row[0] for row in report["tables"][-1]["rows"]] == [f"{REGION} / {CEILING}", f"{REGION} / torchvision"]
    assert "torchvision" in report["versions"] and report["command"].startswith("imagenet-opt bench data.root=")
    assert "region decode / nvImageCodec alone" in capsys.readouterr().out
    assert not list((tmp_path / "cache").glob("bench*"))
