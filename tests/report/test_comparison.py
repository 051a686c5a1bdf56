"""Two runs side by side."""

from dataclasses import replace

from imagenet_opt.doctor.diagnosis import Step
from imagenet_opt.doctor.rule import Finding
from imagenet_opt.measure.stats.rate import Ceiling
from imagenet_opt.report.comparison import careful, ceiling_rows, differences
from imagenet_opt.report.run_files import Record
from tests.doctor.diagnoses import make_diagnosis


def test_the_ratio_is_of_the_printed_rates() -> None:
    """Bursts of 50 and 200 images/s, as often each: 80 on the mean, which a median would call 125."""
    ours = make_diagnosis(ceilings={"full_cold": Ceiling((50.0, 200.0) * 4, in_bursts=True)})
    theirs = make_diagnosis(ceilings={"full_cold": Ceiling((40.0,) * 8)})
    (row,) = ceiling_rows(ours, theirs)
    assert (row.ours, row.theirs) == ("80", "40")
    assert row.ratio == "2.00 (1.25 to 5.00)"


def of(**changes) -> Record:
    return Record("it", make_diagnosis(**changes))


def test_verdicts_rules_steps_and_versions_are_side_by_side() -> None:
    before = of(findings=(Finding("reads in flight", True, "", gain=3.1), Finding("neighbours", None, "")))
    after = of(
        sentence="All is well.",
        cause="healthy",
        next_stage=None,
        findings=(
            Finding("reads in flight", False, ""),
            Finding("slow copy", True, ""),
            Finding("neighbours", False, ""),
        ),
        waterfall=(Step("GPU alone", 0.3), Step("full run", 0.4)),
        versions={"torch": "2.15.0"},
    )
    tables = differences(after, before)
    verdict = {name: (ours, theirs) for name, ours, theirs in tables["verdict"]}
    assert verdict["cause"] == ("the device is the limit", "storage answers late")
    assert verdict["verdict"][0] == "All is well." and "72 %" in verdict["verdict"][1]
    assert verdict["next limit"] == ("none", "GPU, while the loader runs")
    assert tables["rules"] == [
        ("reads in flight", "did not fire", "fired; 3.10 times as fast once fixed"),
        ("slow copy", "fired", "(absent)"),
    ]
    assert tables["step"][0] == ("GPU alone", "300.0", f"{256 / 812 * 1e3:,.1f}", f"{0.3 / (256 / 812):.2f}")
    assert ("torch", "2.15.0", "2.14.0") in tables["machine"]
    assert "cpu" not in {name for name, *_ in tables["machine"]}, "the same in both"


def test_another_machine_or_accelerator_is_a_warning() -> None:
    ours = of(simulated="a10g")
    theirs = of(machine=dict(ours.diagnosis.measurements.machine) | {"gpu": "NVIDIA H100", "storage": "/nvme (ext4)"})
    assert careful(replace(ours, name="mine"), replace(theirs, name="before")) == [
        "the accelerators differ: mine has a simulated a10g, before has a real accelerator",
        "gpu differs: mine has NVIDIA A10G, before has NVIDIA H100",
    ]
    assert careful(ours, ours) == []
