from pathlib import Path

from imagenet_opt.measure.environment.lustre import check_limits
from imagenet_opt.measure.storage.lustre import parse_parameters, read_limits

LCTL = """\
osc.abcd-OST0000-osc-ffff8881.max_rpcs_in_flight=8
osc.abcd-OST0001-osc-ffff8881.max_rpcs_in_flight=4
osc.abcd-OST0000-osc-ffff8881.max_pages_per_rpc=1024
mdc.abcd-MDT0000-mdc-ffff8881.max_rpcs_in_flight=8
llite.abcd-ffff8881.max_read_ahead_mb=64
error: get_param: param_path 'llite/*/nothing': No such file or directory
osc.abcd-OST0000-osc-ffff8881.rpc_stats=
"""


def test_the_least_of_each_limit_counts() -> None:
    found = check_limits(parse_parameters(LCTL), "lustre", num_cpus=16)
    assert found.fired and "osc.*.max_rpcs_in_flight=4" in found.evidence
    assert found.commands == ("sudo lctl set_param osc.*.max_rpcs_in_flight=8",)


def test_lustres_defaults_are_enough_but_for_large_machines() -> None:
    limits = parse_parameters(LCTL.replace("=4\n", "=8\n"))
    assert len(limits) == 5
    assert check_limits(limits, "lustre", num_cpus=64).fired is False
    assert check_limits(limits, "lustre", num_cpus=96).commands == (
        "sudo lctl set_param osc.*.max_rpcs_in_flight=32",
        "sudo lctl set_param mdc.*.max_rpcs_in_flight=64",
    )


def test_files_below_any_root_have_the_names_of_lctl(tmp_path: Path) -> None:
    sys, debug = tmp_path / "sys", tmp_path / "debug"
    for folder, name, text in (
        (sys / "osc/abcd-OST0000-osc-ffff8881", "max_rpcs_in_flight", "8\n"),
        (sys / "mdc/abcd-MDT0000-mdc-ffff8881", "max_rpcs_in_flight", "8\n"),
        (debug / "llite/abcd-ffff8881", "max_read_ahead_mb", "64.00\n"),
    ):
        folder.mkdir(parents=True)
        (folder / name).write_text(text)
    found = read_limits((tmp_path / "absent", sys, debug))
    expected = parse_parameters(LCTL)
    assert found and all(expected[name] == value for name, value in found.items()) and len(found) == 3


def test_elsewhere_or_unreadable_it_cannot_be_looked_at() -> None:
    assert check_limits(None, "xfs", num_cpus=8).fired is None
    assert check_limits({}, "lustre", num_cpus=8).fired is None
