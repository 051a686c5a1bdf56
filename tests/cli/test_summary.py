"""What a run says at its end."""

import pytest

from imagenet_opt.cli.summary import print_summary

NUMBERS = {"throughput/data_wait_fraction": 0.001, "throughput/measured_batches": 184.0}


@pytest.mark.parametrize(
    ("ready", "words"),
    [
        (11.0, "0.1% of the time; too short to tell: 11 of the 184 batches measured were ready before"),
        (9.0, "0.1% of the time"),
    ],
)
def test_a_run_that_lived_off_what_was_ready_says_so(tmp_path, capsys, ready: float, words: str) -> None:
    print_summary(NUMBERS | {"throughput/ready_batches": ready}, tmp_path)
    row = next(line for line in capsys.readouterr().out.splitlines() if "waiting for data" in line)
    assert row.split("│")[2].strip() == words


def test_a_run_without_rates_says_that_they_were_not_measured(tmp_path, capsys) -> None:
    print_summary({}, tmp_path)
    assert "too short" not in (said := capsys.readouterr().out)
    assert said.count("not measured") >= 4
