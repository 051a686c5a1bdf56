import os
from pathlib import Path

import pytest

from imagenet_opt.doctor.environment.lustre import check_limits, check_released
from imagenet_opt.doctor.remedies import DataPlace
from imagenet_opt.measure.storage.lustre import (
    looks_released,
    parse_hsm_states,
    parse_parameters,
    read_hsm_states,
    read_limits,
)

LCTL = """\
osc.abcd-OST0000-osc-ffff8881.max_rpcs_in_flight=8
osc.abcd-OST0001-osc-ffff8881.max_rpcs_in_flight=4
osc.abcd-OST0000-osc-ffff8881.max_pages_per_rpc=1024
mdc.abcd-MDT0000-mdc-ffff8881.max_rpcs_in_flight=8
llite.abcd-ffff8881.max_read_ahead_mb=64
error: get_param: param_path 'llite/*/nothing': No such file or directory
osc.abcd-OST0000-osc-ffff8881.rpc_stats=
"""


def test_the_lowest_value_of_each_limit_counts() -> None:
    finding = check_limits(parse_parameters(LCTL), "lustre", num_cpus=16)
    assert finding.fired and "osc.*.max_rpcs_in_flight=4" in finding.evidence
    assert finding.commands == ("sudo lctl set_param osc.*.max_rpcs_in_flight=8",)


def test_lustres_defaults_are_enough_but_for_large_machines() -> None:
    limits = parse_parameters(LCTL.replace("=4\n", "=8\n"))
    assert len(limits) == 5
    assert check_limits(limits, "lustre", num_cpus=64).fired is False
    assert check_limits(limits, "lustre", num_cpus=96).commands == (
        "sudo lctl set_param osc.*.max_rpcs_in_flight=32",
        "sudo lctl set_param mdc.*.max_rpcs_in_flight=64",
    )


def test_limits_in_files_have_the_names_of_lctl(tmp_path: Path) -> None:
    sys, debug = tmp_path / "sys", tmp_path / "debug"
    for folder, name, text in (
        (sys / "osc/abcd-OST0000-osc-ffff8881", "max_rpcs_in_flight", "8\n"),
        (sys / "mdc/abcd-MDT0000-mdc-ffff8881", "max_rpcs_in_flight", "8\n"),
        (debug / "llite/abcd-ffff8881", "max_read_ahead_mb", "64.00\n"),
    ):
        folder.mkdir(parents=True)
        (folder / name).write_text(text)
    limits = read_limits((tmp_path / "absent", sys, debug))
    expected = parse_parameters(LCTL)
    assert limits and all(expected[name] == value for name, value in limits.items()) and len(limits) == 3


def test_elsewhere_or_unreadable_nothing_is_judged() -> None:
    assert check_limits(None, "xfs", num_cpus=8).fired is None
    assert check_limits({}, "lustre", num_cpus=8).fired is None
    for kind in ("ext4", "lustre"):
        assert check_released(None, DataPlace("/d"), kind).fired is None


OUTPUT = """\
/fsx/train/n01440764/a.JPEG: (0x0000000d) released exists archived, archive_id:1
/fsx/train/n01440764/b: (0x1) c.JPEG: (0x00000009) exists archived, archive_id:1
/fsx/train/n01440764/d.JPEG: (0x0000000b) exists dirty archived, archive_id:1
/fsx/train/n01440764/e.JPEG: (0x00000000)
Cannot get HSM state of /fsx/train/f.JPEG: No such file or directory
"""


def test_the_states_of_lfs() -> None:
    folder = "/fsx/train/n01440764"
    expected = {f"{folder}/a.JPEG": 13, f"{folder}/b: (0x1) c.JPEG": 9, f"{folder}/d.JPEG": 11, f"{folder}/e.JPEG": 0}
    assert parse_hsm_states(OUTPUT) == expected


def test_released_files_are_fetched_by_hydrate() -> None:
    data = DataPlace("/fsx", ".")
    finding = check_released(parse_hsm_states(OUTPUT), data, "lustre")
    assert finding.rule == "released_files" and finding.fired
    assert "1 of 4" in finding.evidence and "25%" in finding.evidence
    assert finding.commands == ("imagenet-opt hydrate data.root=/fsx data.train_folder=.",)
    assert check_released({"a": 9, "b": 0}, data, "lustre").fired is False
    lost = check_released({"a": 0x49}, data, "lustre")
    assert lost.fired and "has lost 1 more" in lost.evidence and not lost.commands
    assert lost.remedy == "copy the lost files again from their source"


@pytest.mark.parametrize(
    ("size", "blocks", "released"), [(110_000, 0, True), (110_000, 1, True), (110_000, 216, False), (0, 0, False)]
)
def test_a_released_file_has_content_but_no_blocks(size: int, blocks: int, released: bool) -> None:
    assert looks_released(size=size, num_blocks=blocks) == released


def test_without_lfs_the_blocks_decide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hole has no blocks either."""
    monkeypatch.setenv("PATH", str(tmp_path))
    there, hole = tmp_path / "there", tmp_path / "hole"
    there.write_bytes(os.urandom(20_000))
    hole.touch()
    os.truncate(hole, 20_000)
    with there.open("rb") as file:
        os.fsync(file.fileno())  # blocks are counted once they are laid out
    states = read_hsm_states([str(there), str(hole), str(tmp_path / "absent")])
    assert states == {str(there): 0, str(hole): 4}


def test_lfs_is_used_if_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lfs = tmp_path / "lfs"
    lfs.write_text('#!/bin/sh\nshift\nfor file; do echo "$file: (0x0000000d) released exists archived"; done\n')
    lfs.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_hsm_states(["/fsx/a b.JPEG", "/fsx/c.JPEG"]) == {"/fsx/a b.JPEG": 13, "/fsx/c.JPEG": 13}
