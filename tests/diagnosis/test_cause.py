"""The cause of a loop, from made-up measurements; and the gain of its remedy, by hand."""

import pytest

from imagenet_opt.diagnosis.cause import judge
from imagenet_opt.diagnosis.measurements import Measurements, Parts, Trial
from imagenet_opt.measure.stats.verdict import LEAST_GAIN

ROUNDS = (0.99, 1.0, 1.0, 1.01)


def rounds(seconds: float) -> list[float]:
    return [seconds * scatter for scatter in ROUNDS]


def loop(loop: float, *, kept: float, drained: float, parts: Parts | None = None, **more: object) -> Measurements:
    """Two workers on two CPUs, batches of 32 samples; the workers do not slow the step down. Seconds of a batch."""
    given = {"kind": "DataLoader", "num_workers": 2, "usable_cpus": 2, "num_leaves": 2, "num_samples": 32.0}
    seconds = {"loop": rounds(loop), "body": rounds(kept), "kept": rounds(kept), "drained": rounds(drained)}
    return Measurements(**given | seconds | {"parts": [parts or Parts(computing=2 * drained)]} | more)  # type: ignore[arg-type]


def tried(name: str, settings: dict[str, object], before: float, after: float) -> Trial:
    return Trial(name, settings, rounds(before), rounds(after))


WAITING, COMPUTING = Parts(waiting=0.55, computing=0.05), Parts(waiting=0.02, computing=0.58)
FOUR_WORKERS = tried("num_workers=4", {"num_workers": 4}, 0.3, 0.15)
LARGER = Trial("batch_size=128", {}, rounds(0.05), rounds(0.06), times=4)
CASES = {
    "waits of samples": (loop(0.3, kept=0.05, drained=0.3, parts=WAITING), "storage"),
    "waits, although more workers halve them": (
        loop(0.3, kept=0.05, drained=0.3, parts=WAITING, trials=[FOUR_WORKERS]),
        "storage",
    ),
    "computing": (loop(0.3, kept=0.05, drained=0.3, parts=COMPUTING), "decode"),
    "computing, on more CPUs than workers": (
        loop(0.3, kept=0.05, drained=0.3, parts=COMPUTING, usable_cpus=8, trials=[FOUR_WORKERS]),
        "few_workers",
    ),
    "no workers": (
        loop(
            0.35,
            kept=0.05,
            drained=0.3,
            parts=Parts(computing=0.3),
            num_workers=0,
            trials=[tried("num_workers=2", {"num_workers": 2}, 0.35, 0.15)],
        ),
        "few_workers",
    ),
    "epochs of ten batches": (
        loop(
            0.1,
            kept=0.1,
            drained=0.05,
            batches=10,
            starts=[0.8],
            trials=[tried("persistent_workers=True", {"persistent_workers": True}, 0.17, 0.1)],
        ),
        "few_workers",
    ),
    "slow collate": (
        loop(0.3, kept=0.05, drained=0.3, parts=Parts(computing=0.1, collating=0.45, sending=0.05)),
        "collate",
    ),
    "many objects": (
        loop(0.3, kept=0.05, drained=0.3, parts=Parts(computing=0.1, sending=0.5), num_leaves=4096),
        "collate",
    ),
    "many bytes": (loop(0.3, kept=0.05, drained=0.3, parts=Parts(computing=0.1, sending=0.5)), "copy"),
    "short operations": (loop(0.05, kept=0.05, drained=0.01, num_ops=2000.0, trials=[LARGER]), "launches"),
    "a step of fixed cost without operations": (loop(0.05, kept=0.05, drained=0.01, trials=[LARGER]), "training"),
    "syncs on a GPU": (
        loop(0.05, kept=0.05, drained=0.01, on_gpu=True, kernel_seconds=0.03, waits={"item at train.py:9": 1.0}),
        "host_sync",
    ),
    "gaps between kernels": (loop(0.05, kept=0.05, drained=0.01, on_gpu=True, kernel_seconds=0.03), "launches"),
    "slow step": (loop(0.3, kept=0.3, drained=0.05), "training"),
    "loader and step alike": (loop(0.3, kept=0.3, drained=0.295), "none"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_largest_gain_names_the_cause(name: str) -> None:
    measured, cause = CASES[name]
    diagnosis = judge(measured)
    assert diagnosis.cause == cause
    low, high = diagnosis.gain
    assert (low, high) == (1.0, 1.0) if cause in ("training", "none") else high >= low > 1.0
    assert cause in ("training", "none") or diagnosis.remedy
    assert str(diagnosis)


def test_a_loop_gains_no_more_than_its_step_allows() -> None:
    """0.3 s a batch, of which a worker waits for 0.55 of 0.6 s; the step takes 0.2 s."""
    low, high = judge(loop(0.3, kept=0.2, drained=0.3, parts=WAITING)).gain
    assert low < 1.501 and 1.499 < high < 1.6


def test_the_gain_of_a_remedy_that_was_not_tried_reaches_from_a_part_of_the_part_to_all_of_it() -> None:
    """A worker computes for 0.3 of 0.6 s, waits for a CPU for 0.2 s and joins samples for 0.1 s. At least a third
    of the computing is saved; at most all of it, and nobody waits for a CPU."""
    parts = Parts(computing=0.3, queued=0.2, collating=0.1)
    gain = judge(loop(0.3, kept=0.02, drained=0.3, parts=parts)).gain
    assert gain == pytest.approx((0.3 / 0.25 / LEAST_GAIN, 0.3 / 0.05 * LEAST_GAIN))


def test_a_part_that_hardly_computes_is_no_cause_although_it_waits_long_for_a_cpu() -> None:
    parts = Parts(computing=0.002, collating=0.002, sending=0.001, queued=0.59)
    diagnosis = judge(loop(0.3, kept=0.05, drained=0.3, parts=parts, others_cpus=2.0))
    assert diagnosis.cause == "none" and "other processes use 2.0 of 2 CPUs" in " ".join(diagnosis.unknown)


def test_a_loop_that_takes_much_longer_than_its_step_is_not_called_healthy() -> None:
    varying = loop(0.3, kept=0.05, drained=0.02, num_workers=0)
    varying.loop, varying.drained = [0.04, 0.5, 0.3], [0.02, 0.021, 0.02]
    diagnosis = judge(varying)
    assert diagnosis.cause == "none" and diagnosis.sentence.startswith("Undecided")


def test_a_loop_whose_rounds_vary_is_judged_by_the_loader_alone() -> None:
    uneven = loop(0.3, kept=0.05, drained=0.3, parts=COMPUTING)
    uneven.loop = [0.06, 0.6]
    assert judge(uneven).cause == "decode"
    uneven.drained = [0.06, 0.6]
    diagnosis = judge(uneven)
    assert diagnosis.cause == "none" and "rounds vary too much" in " ".join(diagnosis.unknown)


def test_a_tried_remedy_has_the_measured_gain() -> None:
    diagnosis = judge(CASES["no workers"][0])
    gain = 0.35 / 0.15  # in all rounds
    assert diagnosis.gain == pytest.approx((gain / LEAST_GAIN, gain * LEAST_GAIN))
    assert diagnosis.settings == {"num_workers": 2}


def test_transforms_that_cost_more_than_decoding_are_named() -> None:
    lines = {"train.py:7 Image.resize": 80, "train.py:5 ImageFile.load": 20}
    diagnosis = judge(loop(0.3, kept=0.05, drained=0.3, parts=COMPUTING, lines=lines, decoding=20))
    assert diagnosis.cause == "decode" and "transforms" in diagnosis.remedy
    assert "transforms and other Python 80%: train.py:7" in " ".join(diagnosis.evidence)


def test_a_part_of_the_time_that_nothing_explains_is_unknown() -> None:
    diagnosis = judge(loop(0.3, kept=0.05, drained=0.3, parts=Parts(computing=0.1)))
    assert "17%" in " ".join(diagnosis.unknown)
