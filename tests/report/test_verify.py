"""Records of runs that contradict themselves or their run are refused, with the field."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from imagenet_opt.cli.main import run
from imagenet_opt.errors import ConfigError
from imagenet_opt.run.record import read_summary

RATE = "throughput/images_per_second"
WEIGHTS, CONFIG = b"weights", b"seed: 0\n"
EVALUATION: dict[str, Any] = json.loads(
    """{"checkpoint": "best.ckpt", "eval": "ffcv", "image_size": 256, "crop_ratio": 0.875, "interpolation": "area",
    "tta": true, "top1": 0.75, "top5": 0.9, "correct": [20, 40], "images": [40, 40]}"""
) | {"sha256": hashlib.sha256(WEIGHTS).hexdigest()}
RECORD: dict[str, Any] = json.loads(
    """{"format": 1, "experiment": "rn50_ffcv", "device": "NVIDIA A10G", "num_gpus": 1, "num_machines": 1,
    "train_images": 1000, "val_images": 80, "epochs": 9.6, "steps": 96, "global_batch": 100, "samples": 9600,
    "starts": [[0, 3600.0], [40, 5400.0]], "hours": 2.5, "price_per_hour": 0.5, "dollars": 1.25,
    "versions": {"python": "3", "imagenet-opt": "0", "torch": "2", "lightning": "2", "timm": "1"}}"""
) | {
    "recipe_sha256": "1" * 64,
    "config_sha256": hashlib.sha256(CONFIG).hexdigest(),
    "evaluation": EVALUATION,
    "numbers": {RATE: 5600 / 5000, "steps": 96, "val/acc1": 0.75},  # the last start had 400 s for other things
}
NUMBERS = RECORD["numbers"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra/config.yaml").write_bytes(CONFIG)
    (tmp_path / "best.ckpt").write_bytes(WEIGHTS)
    (tmp_path / "metrics.csv").write_text("step,val/acc1\n48,0.5\n96,0.75\n")
    (tmp_path / "record.json").write_text(json.dumps(RECORD))
    return tmp_path


def test_a_record_that_agrees_with_itself_and_its_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("report", ["--verify", str(folder)])
    output = capsys.readouterr().out
    for words in ("9.6 epochs", "2.50 hours", "$1.25", "75.00%", "eval=ffcv", "recipe_sha256: no last.ckpt"):
        assert words in output, words
    assert read_summary(folder)["val/acc1"] == 0.75
    (folder / "alone.json").write_text((folder / "record.json").read_text())
    run("report", ["--verify", str(folder / "alone.json")])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("samples", 9601 * 9), ("epochs", 96.0), ("hours", 1.0), ("dollars", 0.25), ("price_per_hour", None)),
        *(("steps", 90), ("versions", {"torch": "1.0"}), ("starts", [[0, 5400.0], [400, 3600.0]]), ("format", 2)),
        *(("numbers", NUMBERS | {RATE: 9 * 1.12}), ("numbers", NUMBERS | {RATE: 0.5})),
        *(("numbers", NUMBERS | {"val/acc1": 0.79}), ("config_sha256", "0" * 64), ("hours", -1.0)),
        *(("evaluation", EVALUATION | {"top1": 0.789}), ("evaluation", EVALUATION | {"sha256": "0" * 64})),
        *(
            ("evaluation", EVALUATION | {"images": [30, 30]}),
            ("evaluation", EVALUATION | {"checkpoint": "/etc/passwd"}),
        ),
        *(("recipe_sha256", "../x"), ("device", ["\x1b[2J"]), ("more", 1)),
    ],
)
def test_a_forged_record_is_refused_with_its_field(folder: Path, field: str, value: object) -> None:
    (folder / "record.json").write_text(json.dumps(RECORD | {field: value}))
    named = {"price_per_hour": "dollars"}.get(field, field)
    with pytest.raises(ConfigError, match=rf"record\.json.* {named}\b") as refused:
        run("report", ["--verify", str(folder)])
    assert str(refused.value).isprintable()
