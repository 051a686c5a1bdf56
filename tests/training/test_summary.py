"""What a run says at its end."""

import pytest

from imagenet_opt.training.summary import Setup, print_summary


@pytest.mark.parametrize(
    ("ready", "waited", "words"),
    [
        (11.0, 0.001, "0.1% of the time; too short to tell: 11 of 184 batches were ready when measuring began"),
        (9.0, 0.001, "0.1% of the time"),
        (11.0, 0.9, "90.0% of the time"),
    ],
)
def test_a_run_that_lived_off_what_was_ready_says_so(tmp_path, capsys, ready: float, waited: float, words: str) -> None:
    numbers = {"data_wait_fraction": waited, "measured_batches": 184.0, "ready_batches": ready}
    print_summary({f"throughput/{key}": value for key, value in numbers.items()}, tmp_path, Setup())
    row = next(line for line in capsys.readouterr().out.splitlines() if "waiting for data" in line)
    assert row.split("│")[2].strip() == words


def test_a_run_without_rates_says_that_they_were_not_measured(tmp_path, capsys) -> None:
    print_summary({}, tmp_path, Setup())
    assert "too short" not in (said := capsys.readouterr().out)
    assert said.count("not measured") >= 4


def rows(said: str) -> dict[str, str]:
    cells = [line.split("│")[1:3] for line in said.splitlines() if line.startswith("│")]
    return {name.strip(): text.strip() for name, text in cells}


def test_precision_and_mfu_are_rows_where_they_are_known(tmp_path, capsys) -> None:
    known = {"throughput/mfu_fraction": 0.1976, "throughput/peak_tflops_per_second": 2496.0}
    print_summary(known, tmp_path, Setup(precision="bf16-mixed"))
    said = rows(capsys.readouterr().out)
    assert (said["precision"], said["MFU"]) == ("bf16-mixed", "19.8% of 2,496 TFLOP/s")
    print_summary({}, tmp_path, Setup())
    assert not {"precision", "MFU"} & rows(capsys.readouterr().out).keys()


@pytest.mark.parametrize(
    ("accuracies", "words"),
    [
        ({"val/acc1": 0.86, "val/acc5": 0.991}, "acc1 86.0%, acc5 99.1% on validation"),
        ({"val/acc1": 0.86}, "acc1 86.0% on validation"),  # of fewer than six classes
    ],
)
def test_the_accuracies_that_there_are_are_a_row(tmp_path, capsys, accuracies: dict[str, float], words: str) -> None:
    print_summary(accuracies, tmp_path, Setup())
    assert rows(capsys.readouterr().out)["accuracy"] == words


def test_a_simulated_accelerator_is_called_so(tmp_path, capsys) -> None:
    numbers = {"rehearsal/accelerator_utilization": 0.931}
    print_summary(numbers, tmp_path, Setup(simulated="simulated a10g"))
    row = next(line for line in capsys.readouterr().out.splitlines() if "GPU busy" in line)
    assert row.split("│")[2].strip() == "93% of a simulated a10g"


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ({"busy": 0.2, "read": 0.7, "decode": 0.1}, "waiting for storage, 70 % of the time; the GPU is busy 20 %"),
        ({"busy": 0.95, "validation": 0.05}, "none, the GPU is busy 95 % of the time"),
    ],
)
def test_the_cause_of_idleness_is_a_row(tmp_path, capsys, shares: dict[str, float], words: str) -> None:
    rest = ("main_process", "logging", "checkpoint", "validation", "copy", "unexplained", "read", "decode")
    print_summary(
        {f"bottleneck/{cause}": share for cause, share in (dict.fromkeys(rest, 0.0) | shares).items()},
        tmp_path,
        Setup(on_gpu=True),
    )
    assert words in capsys.readouterr().out


FED_LATE = {"mixing/on": 0.0, "gpu/utilization_percent": 40.0, "throughput/data_wait_fraction": 0.5}


@pytest.mark.parametrize(
    ("changes", "advised"),
    [
        ({}, True),
        ({"throughput/data_wait_fraction": 0.01}, False),
        (
            {
                "throughput/data_wait_fraction": 0.2,
                "throughput/ready_batches": 9.0,
                "throughput/measured_batches": 10.0,
            },
            False,
        ),
        ({"mixing/on": 1.0}, False),
        ({"mixing/on": None}, False),
        ({"gpu/utilization_percent": None}, False),
    ],
)
def test_mixing_is_advised_where_the_gpu_has_time_for_it(
    tmp_path, capsys, changes: dict[str, float | None], advised: bool
) -> None:
    print_summary({key: value for key, value in (FED_LATE | changes).items() if value is not None}, tmp_path, Setup())
    assert ("callbacks.mixing.mode=on should cost no speed" in capsys.readouterr().out) is advised


@pytest.mark.parametrize(
    ("precision", "changes", "advised"),
    [
        ("bf16-mixed", {}, True),
        ("bf16-true", {}, True),
        ("16-mixed", {}, False),
        (None, {}, False),
        ("bf16-mixed", {"startup/compile_seconds": 40.0}, False),
        ("bf16-mixed", {"gpu/utilization_percent": None}, False),
    ],
)
def test_compiling_is_advised_in_bfloat16_on_a_gpu(
    tmp_path, capsys, precision: str | None, changes: dict[str, float | None], advised: bool
) -> None:
    numbers = {key: value for key, value in (FED_LATE | changes).items() if value is not None}
    print_summary(numbers, tmp_path, Setup(precision=precision))
    assert ("callbacks.acceleration.compile=true is likely to help" in capsys.readouterr().out) is advised


def test_a_run_on_the_cpu_has_no_row_of_a_gpu(tmp_path, capsys) -> None:
    shares = dict.fromkeys(("main_process", "logging", "checkpoint", "validation", "copy", "unexplained", "read"), 0.0)
    numbers = {f"bottleneck/{name}": share for name, share in ({"busy": 0.95, "decode": 0.05} | shares).items()}
    print_summary(numbers, tmp_path, Setup(unsent="wandb sync runs/mine/wandb/offline-run-1"))
    said = rows(capsys.readouterr().out)
    assert "GPU busy" not in said and said["bottleneck"] == "none, the CPU is busy 95 % of the time"
    assert said["accuracy"] == "not measured: the run ended before a validation"
    assert said["W&B"] == "recorded offline; to send it: wandb sync runs/mine/wandb/offline-run-1"
