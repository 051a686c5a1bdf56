"""When each cause is the verdict, and its remedy and gain."""

from dataclasses import replace
from typing import Any

import pytest

from imagenet_opt.doctor.diagnosis import Finding
from imagenet_opt.doctor.evidence import Evidence
from imagenet_opt.doctor.explanation import explanation
from imagenet_opt.doctor.verdict import judge
from imagenet_opt.measure.stats.rate import Ceiling
from tests.doctor.diagnoses import change
from tests.doctor.stories import ON_GPU, READING, SLOW_DECODE, SLOW_STORAGE, STARVED, STORIES, finding_of, story


def evidence_line(run: Evidence) -> str:
    return dict(explanation(judge(run)))["evidence"]


def test_less_contention_gives_at_most_the_rate_of_the_gpu_alone() -> None:
    assert judge(STORIES["contention"]).next_gain == pytest.approx(320 / 195)


@pytest.mark.parametrize(
    ("in_slurm", "command"),
    [(True, "#SBATCH --cpus-per-task=5"), (False, "imagenet-opt pack ")],
)
def test_contention_with_one_worker_needs_another_cpu_or_smaller_images(in_slurm: bool, command: str) -> None:
    run = change(STORIES["contention"], facts=replace(STORIES["contention"].facts, num_workers=1, in_slurm=in_slurm))
    diagnosis, finding = judge(run), finding_of("contention", run)
    assert diagnosis.cause == "contention" and diagnosis.next_gain is None
    assert not finding.overrides and finding.commands[0].startswith(command)


def test_a_sync_in_the_network_also_slows_down_the_gpu_alone() -> None:
    """Alone it trains 200 images/s too; by the seconds of the device 320."""
    diagnosis = judge(story(dict.fromkeys(ON_GPU, 200.0), waits_per_step=1.0, waits_places="item at mine.py:7"))
    assert diagnosis.cause == "host_sync" and diagnosis.next_gain == pytest.approx(320 / 200)
    assert "item at mine.py:7" in evidence_line(STORIES["host_sync"])


def test_the_gain_of_smaller_images_is_that_of_the_forecast() -> None:
    """Twice as many images/s per worker; the simulated device trains 320."""
    unknown = judge(STORIES["slow_decode"])
    assert unknown.next_gain is None and unknown.next_stage is None
    assert unknown.sentence == "CPU-bound: 139 img/s, and the simulated a10g alone reaches 320."
    forecast = {"pack_option": "for=176", "pack_speedup": 2.0, "pack_bytes_ratio": 0.4}
    finding = finding_of("slow_decode", story(SLOW_DECODE, STARVED, megapixels=12.0, **forecast))
    assert finding.gain == pytest.approx(2 * 148 / 139, rel=0.01)
    assert "2.0 times as many img/s per worker" in finding.remedy and finding.commands[0].endswith(" for=176")


@pytest.mark.parametrize(
    ("curve", "configured", "overrides", "rate"),
    [
        ((4.0, 65.0, 180.0, 190.0), "4", ("data.reads_in_flight=auto",), 180),
        ((4.0, 65.0, 180.0, 190.0), "auto", ("data.reads_in_flight=16",), 180),  # 64 in flight of 4 workers
        ((30.0, 65.0, 68.0, 68.0), "auto", (), 318),  # the data has to move
    ],
)
def test_more_requests_in_flight_give_the_rate_that_was_measured_with_them(
    curve: tuple[float, ...], configured: str, overrides: tuple[str, ...], rate: float
) -> None:
    curves = {"reads_in_flight": tuple(zip((1.0, 16.0, 64.0, 256.0), curve, strict=True))}
    slow = {"storage_bound": "latency", "requests_in_flight": 16.0}
    run = story(SLOW_STORAGE, READING, reads_in_flight=configured, curves=curves, **slow)
    finding = finding_of("storage_latency", run)
    assert judge(run).cause == "storage_latency" and finding.overrides == overrides
    assert finding.gain == pytest.approx(rate / 58) and finding.commands[0].startswith("imagenet-opt pack")


def test_busy_cpus_do_not_count_as_slow_launches() -> None:
    slow = {"storage_bound": "latency", "lazy": False}
    runs = (story(SLOW_STORAGE | {"gpu": 70.0}, READING, others_cpus=others, **slow) for others in (0.0, 1.5))
    fired = [{finding.rule for finding in judge(run).findings if finding.fired} for run in runs]
    assert fired == [{"storage_latency", "launch_bound"}, {"storage_latency"}]


def test_a_reader_without_cpu_time_is_no_slow_storage() -> None:
    run = story(SLOW_STORAGE, READING, storage_bound="cpu")
    assert judge(run).cause == "slow_decode"
    assert "one process, limited by its CPU, reads 65 img/s" in evidence_line(run)


def test_without_first_touches_a_lazy_mount_is_not_judged() -> None:
    run = story(SLOW_STORAGE, READING, storage_bound="latency", first_touch_evidence="2 requests only")
    finding = finding_of("lazy_mount", run)
    assert finding.fired is None and "2 requests only" in finding.evidence
    assert judge(run).cause == "storage_latency"


def test_released_files_are_lazy_if_no_first_touch_was_measured() -> None:
    command = ("imagenet-opt hydrate data.root=/fsx",)
    released = Finding("released_files", True, "40 of 200 files are released", commands=command, environment=True)
    slow = story(SLOW_STORAGE, READING, storage_bound="latency")
    run = change(slow, environment=(released,))
    assert judge(run).cause == "lazy_mount" and evidence_line(run) == "40 of 200 files are released"
    assert judge(change(story(), environment=(released,))).cause == "healthy"
    touched = change(slow, facts=replace(slow.facts, lazy=False), environment=(released,))
    assert judge(touched).cause == "storage_latency", "1 of 200 would not make all the others slow"
    lost = change(slow, environment=(replace(released, commands=()),))
    assert judge(lost).cause == "storage_latency", "lost files cannot be fetched"


def test_copies_that_are_not_made_ahead_add_to_the_step() -> None:
    """1/(1/320 + 1/640) = 213.3 images/s."""
    ahead = story({"copy": 640.0, "full_warm": 210.0, "full_cold": 210.0})
    waits = change(ahead, config={"data": {"copies": "pinned"}})
    assert waits.expected_rate == pytest.approx(1 / (1 / 320 + 1 / 640)) and ahead.expected_rate == 318.0
    assert judge(waits).cause == "slow_copy" and judge(waits).next_gain == pytest.approx(320 / 210)
    assert finding_of("slow_copy", waits).overrides == ("data.copies=ahead",)


def test_the_next_limit_caps_the_gain() -> None:
    ceilings = STORIES["storage_bandwidth"].ceilings | {"decode_all": Ceiling((200.0,), {})}
    diagnosis = judge(change(STORIES["storage_bandwidth"], ceilings=ceilings))
    assert diagnosis.next_gain == pytest.approx(200 / 58, rel=0.05)  # the training process uses CPU time too
    assert diagnosis.next_stage == "decode_all"


def test_the_state_of_the_data_decides_which_run_is_judged() -> None:
    diagnosis = judge(story(SLOW_STORAGE, cached_share=1.0))
    assert (diagnosis.cause, diagnosis.measured) == ("healthy", 318.0)
    assert judge(story(SLOW_STORAGE, READING, cached_share=0.6, storage_bound="latency")).measured == 58.0


def test_without_workers_training_waits_for_each_batch() -> None:
    """320 images/s of the GPU and 100 of one process, one after the other."""
    rates = dict.fromkeys(("loader_warm", "loader_cold", "decode_all"), 100.0) | {"full_warm": 76.0, "full_cold": 76.0}
    curves = {"workers": ((0.0, 100.0), (4.0, 390.0))}
    run = story(rates, {"fetch": 0.32}, num_workers=0, prefetch_factor=0, curves=curves)
    assert run.expected_rate == pytest.approx(1 / (1 / 320 + 1 / 100))
    assert judge(run).cause == "few_workers"
    assert finding_of("few_workers", run).overrides == ("data.num_workers=4",)


def test_twice_the_cpus_give_at_most_twice_the_rate() -> None:
    """2 CPUs instead of 1: twice 120 images/s; the GPU trains 320."""
    rates = SLOW_DECODE | {"full_cold": 120.0, "full_warm": 120.0}
    diagnosis = judge(story(rates, STARVED, usable_cpus=1, machine_cpus=2, num_workers=1))
    assert (diagnosis.cause, diagnosis.next_gain, diagnosis.next_stage) == ("few_cpus", 2.0, "decode_all")


def test_training_and_loading_share_the_cpus() -> None:
    """4 CPUs; a step of 32 images takes 0.16 s of one, an image 4/400 s: 1/200 + 1/100 s together. For few_workers, 4
    workers would decode 600 images/s, and a step of 32 takes 0.01 s."""
    assert story({"decode_all": 400.0}, main_cpu_seconds=0.16).cpu_rate == pytest.approx(4 / (1 / 200 + 1 / 100))
    together = 4 / (0.01 / 32 + 4 / 600)
    assert judge(STORIES["few_workers"]).next_gain == pytest.approx(min(318, together) / 139, rel=0.01)


def test_without_a_rated_gpu_its_speed_is_not_judged() -> None:
    assert finding_of("slow_gpu", story(rated_images_per_second=0.0)).fired is None


LAZY_BUT_TOUCHED: dict[str, Any] = {
    "lazy": True,
    "first_touch_seconds": 0.3,
    "second_touch_seconds": 0.003,
    "first_requests_in_flight": 64,
    "requests_in_flight": 8.0,
}
"""Files took 0.3 s when the doctor first touched them; the run read them again, at full speed."""


def test_first_touches_decide_even_if_the_run_read_touched_files() -> None:
    """64 requests in flight / 0.3 s = 213 images/s in the first epoch, of 316 in later ones."""
    diagnosis = judge(story(**LAZY_BUT_TOUCHED))
    assert diagnosis.cause == "lazy_mount" and diagnosis.next_gain == pytest.approx(316 / (64 / 0.3))
    assert diagnosis.sentence == "Storage-bound: about 213 img/s in the first epoch, 316 in later ones."
    lines = dict(explanation(diagnosis))
    assert "300 ms at the first read, 3 ms at the second" in lines["evidence"]
    assert lines["command"].startswith("imagenet-opt hydrate")


@pytest.mark.parametrize("change", [{"first_requests_in_flight": 512}, {"cached_share": 1.0}])
def test_a_lazy_mount_is_healthy_if_enough_requests_or_the_page_cache_serve_it(change: dict[str, float]) -> None:
    assert judge(story(**LAZY_BUT_TOUCHED | change)).cause == "healthy"


def test_more_batches_ahead_do_not_help_a_run_that_is_as_fast_as_its_stages() -> None:
    """Other processes slow down the GPU: it trains 113 images/s beside the loader, and the run gives 140."""
    rates = {"gpu": 132.0, "gpu_beside_loader": 113.0, "loader_cold": 154.0, "decode_all": 353.0, "full_cold": 140.0}
    run = story(rates | {"storage_cold": 128.0}, {"fetch": 0.1}, storage_bound="bandwidth", lazy=False)
    assert finding_of("small_prefetch", run).fired is False


@pytest.mark.parametrize(
    ("decode_seconds", "gap", "cause", "ending"),
    [
        pytest.param(2.0, 5.0, "storage_latency", "60 img/s, with pauses of up to 5.0 s", id="the storage stalls"),
        pytest.param(0.5, 0.2, "storage_latency", "60 img/s", id="each batch waits for its latest file"),
        pytest.param(2.0, 0.2, "unexplained", "60 img/s", id="decoding takes long too"),
    ],
)
def test_a_storage_that_is_fast_alone_is_named_if_workers_wait_for_it(
    decode_seconds: float, gap: float, cause: str, ending: str
) -> None:
    """Alone it gives 5000 images/s; the workers wait 3 s for each batch."""
    rates = {"loader_cold": 60.0, "full_cold": 58.0}
    alone = story(rates, READING, storage_bound="latency", storage_latency_seconds=0.004, lazy=False)
    facts = {"read_seconds": 3.0, "decode_seconds": decode_seconds, "longest_gap_seconds": gap}
    run = change(alone, ceilings=alone.ceilings | {"loader_cold": Ceiling((60.0,), facts)})
    assert judge(run).cause == cause
    assert finding_of("storage_latency", run).evidence.endswith(ending)
