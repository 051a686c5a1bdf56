"""The table that a run prints at its end."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch.callbacks import Timer

from imagenet_opt.training.summary import print_summary

CAUSES = ("main_process", "logging", "checkpoint", "validation", "copy", "unexplained", "read", "decode", "cpu")


def trainer(device: str = "cpu", *, should_stop: bool = False, callback: Any = None) -> Any:
    """After a fit with one callback."""
    strategy = SimpleNamespace(root_device=SimpleNamespace(type=device))
    return SimpleNamespace(strategy=strategy, callbacks=[callback], loggers=[None], should_stop=should_stop)


def rates(ready: float) -> dict[str, float]:
    measured = {"throughput/measured_batches": 184.0, "throughput/ready_batches": ready}
    return measured | {"throughput/data_wait_fraction": 0.9, "throughput/images_per_second": 10.0}


def shares(**shares: float) -> dict[str, float]:
    return {f"bottleneck/{cause}": share for cause, share in (dict.fromkeys(CAUSES, 0.0) | shares).items()}


SIMULATED = trainer(callback=SimpleNamespace(simulated="simulated a10g", timeline=None))


@pytest.mark.parametrize(
    ("row", "text", "numbers", "fitted"),
    [
        ("waiting for data", "90.0%", rates(ready=11.0), trainer()),
        ("speed", "10 images/s", rates(ready=11.0) | {"throughput/it_per_second": 0.19}, trainer()),
        ("waiting for data", "too short to tell", rates(ready=180.0), trainer()),
        ("best.ckpt", "val/acc1 66.7%, epoch 1", {"best/val/acc1": 0.6667, "best/epoch": 1}, trainer()),
        ("stopped by", "trainer.max_time", {}, trainer(should_stop=True, callback=Timer({"seconds": 0}))),
        ("GPU busy", "93% of the simulated a10g", {"rehearsal/accelerator_utilization": 0.931}, SIMULATED),
        ("bottleneck", "storage, 70 %", shares(busy=0.2, read=0.7, decode=0.1), trainer("cuda")),
        ("bottleneck", "the CPU, which trains 95%", shares(busy=0.95, decode=0.05), trainer()),
    ],
)
def test_row_of_the_summary(
    row: str, text: str, numbers: dict[str, float], fitted: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    print_summary(numbers, tmp_path, fitted, done_steps=0)
    texts = dict[str, str]()
    for line in filter(lambda line: line.startswith("│"), capsys.readouterr().out.splitlines()):
        name, shown = (cell.strip() for cell in line.split("│")[1:3])
        name = name or list(texts)[-1]  # a wrapped line belongs to the row above
        texts[name] = f"{texts.get(name, '')} {shown}".strip()
    assert text in texts[row]
