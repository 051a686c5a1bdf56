"""The table that a run prints at its end."""

from pathlib import Path

import pytest

from imagenet_opt.training.summary import Setup, print_summary

RATES = "throughput/data_wait_fraction", "throughput/measured_batches", "throughput/ready_batches"
CAUSES = ("main_process", "logging", "checkpoint", "validation", "copy", "unexplained", "read", "decode")
ON_GPU = Setup(on_gpu=True)
SIMULATED = Setup(simulated="simulated a10g")
MFU = "throughput/mfu_fraction", "throughput/peak_tflops_per_second"
LASTED = {"run_seconds": 184.2, "steps": 320.0}


def rates(ready: float, waited: float) -> dict[str, float]:
    return dict(zip(RATES, (waited, 184.0, ready), strict=True))


def shares(**shares: float) -> dict[str, float]:
    return {f"bottleneck/{cause}": share for cause, share in (dict.fromkeys(CAUSES, 0.0) | shares).items()}


@pytest.mark.parametrize(
    ("row", "text", "numbers", "setup"),
    [
        ("waiting for data", "too short to tell", rates(ready=11.0, waited=0.001), Setup()),
        ("waiting for data", "90.0%", rates(ready=11.0, waited=0.9), Setup()),
        ("speed", "not measured", {}, Setup()),
        (
            "speed",
            "0.19 it/s, 10 images/s; too short to tell",
            rates(ready=11.0, waited=0.001) | {"throughput/it_per_second": 0.19, "throughput/images_per_second": 10.0},
            Setup(),
        ),
        ("whole run", "184 s, 320 steps", LASTED, Setup()),
        ("whole run", None, LASTED, Setup(done_steps=180)),
        ("this start", "140 of 320 steps; resumed at step 180", LASTED, Setup(done_steps=180)),
        ("accuracy", "not measured", {}, Setup()),
        ("accuracy", "acc1 86.0%, acc5 99.1%", {"val/acc1": 0.86, "val/acc5": 0.991}, Setup()),
        ("MFU", "19.8% of 2,496", dict(zip(MFU, (0.1976, 2496.0), strict=True)), Setup()),
        ("GPU busy", "93% of a simulated a10g", {"rehearsal/accelerator_utilization": 0.931}, SIMULATED),
        ("GPU busy", None, shares(busy=0.95, decode=0.05), Setup()),
        ("bottleneck", "storage, 70 %", shares(busy=0.2, read=0.7, decode=0.1), ON_GPU),
        ("bottleneck", "none, the GPU is busy 95 %", shares(busy=0.95, validation=0.05), ON_GPU),
        ("bottleneck", "the CPU, which trains 95%", shares(busy=0.95, decode=0.05), Setup()),
    ],
)
def test_row_of_the_summary(
    row: str,
    text: str | None,
    numbers: dict[str, float],
    setup: Setup,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_summary(numbers, tmp_path, setup)
    texts: dict[str, str] = {}
    for line in filter(lambda line: line.startswith("│"), capsys.readouterr().out.splitlines()):
        name, shown = (cell.strip() for cell in line.split("│")[1:3])
        name = name or list(texts)[-1]  # a wrapped line belongs to the row above
        texts[name] = f"{texts.get(name, '')} {shown}".strip()
    assert (row not in texts) if text is None else (text in texts[row])


def test_a_path_stays_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, send = tmp_path / "/".join(["deep"] * 40), f"wandb sync {'/runs' * 40}"
    print_summary({}, folder, Setup(unsent=send))
    assert {f"run folder: {folder}", f"W&B: recorded offline; to send it: {send}"} <= {
        *capsys.readouterr().out.splitlines()
    }
