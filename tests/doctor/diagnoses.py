"""Diagnoses and run folders with made-up numbers."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from imagenet_opt.doctor.causes import judge
from imagenet_opt.doctor.diagnosis import Diagnosis
from imagenet_opt.doctor.diagnosis_file import FILE, as_json
from imagenet_opt.doctor.evidence import Evidence
from imagenet_opt.doctor.first_look import Host, Setup
from imagenet_opt.doctor.rule import Finding
from imagenet_opt.measure.stats.rate import Ceiling
from tests.report.recordings import recorded

BATCH_SIZE = 256
RATES = {
    "gpu": 812.0,
    "gpu_beside_loader": 774.0,
    "loader_warm": 1180.0,
    "loader_cold": 221.0,
    "decode_one": 168.0,
    "decode_all": 1244.0,
    "storage_cached": 21400.0,
    "storage_cold": 224.0,
    "copy": 9800.0,
    "copy_overlapped": 7400.0,
    "full_warm": 742.0,
    "full_cold": 212.0,
}
"""Images per second by stage."""
MACHINE = {"cpu": "AMD EPYC 7R32", "gpu": "NVIDIA A10G", "usable CPUs": "8", "memory": "31 GiB"}
MACHINE |= {"storage": "/fsx (lustre)", "CUDA": "13.0", "driver": "580.95.05"}
SPREAD = (0.97, 0.98, 0.99, 1.0, 1.01, 1.02, 1.03)
READS = Finding("reads in flight", True, "A read takes 31 ms.", "Keep more.", ("data.reads_in_flight=64",), gain=3.1)
COMMAND = "imagenet-opt pack data.root=/fsx/imagenet out=/nvme/imagenet"
PACK = Finding("files one by one", True, "Each costs a round trip.", "Pack them.", commands=(COMMAND,), gain=3.65)
SYSFS = "sudo sh -c 'echo 4096 > /sys/class/bdi/0:57/read_ahead_kb'"
ENVIRONMENT = Finding("read-ahead", True, "It is 128.", "Raise it.", commands=(SYSFS,), environment=True)
QUIET = Finding("slow decode", False, "All workers together decode 1,244 images/s.")
BLIND = Finding("neighbours", None, "/proc/pressure/cpu cannot be read in this container.")


def changed(part: Any, **changes: Any) -> Any:
    """Evidence or a diagnosis, with changed fields of itself, of its measurements, of their `setup` or `host`."""
    new = _changed(part, changes)
    assert not changes, changes
    return new


def _changed(part: Any, changes: dict[str, Any]) -> Any:
    """The part with those changes that it has fields for; they are removed from `changes`."""
    own = {key: changes.pop(key) for key in part.__dataclass_fields__ if key in changes}
    for inner in ("measurements", "setup", "host"):
        if inner in part.__dataclass_fields__ and inner not in own:
            own[inner] = _changed(getattr(part, inner), changes)
    return replace(part, **own)


def make_evidence(**changes: Any) -> Evidence:
    """A machine with 8 CPUs and 31 GiB, and 1,281,167 files on storage that answers late."""
    seconds = BATCH_SIZE / RATES["full_cold"]
    steps = np.random.default_rng(0).gamma(40, seconds / 40, 400)
    loader = {"reads_in_flight": 16.0, "num_workers": 8.0}
    facts = {name: {"device_seconds": 0.31} if name.startswith(("gpu", "full")) else loader for name in RATES}
    ceilings = {name: Ceiling(tuple(rate * x for x in SPREAD), facts[name]) for name, rate in RATES.items()}
    evidence = Evidence(
        simulated=None,
        batch_size=BATCH_SIZE,
        setup=Setup(
            usable_cpus=8,
            num_workers=8,
            prefetch_factor=2,
            batch_bytes=38e6,
            num_samples=1_281_167,
            has_gpu=True,
            cached_share=0.0,
        ),
        host=Host(installed_cpus=8, cpu_limits={"affinity": 8}, free_shared_memory=16 << 30, available_memory=31 << 30),
        mb_per_image=0.11,
        ceilings=ceilings | {"copy_overlapped": Ceiling((RATES["copy_overlapped"],))},  # one mean over all copies
        step_seconds=tuple(steps.tolist()),
        curves={
            "workers": ((1, 168.0), (2, 330.0), (4, 640.0), (8, 1244.0)),
            "reads_in_flight": ((1, 3.2), (16, 51.0), (64, 201.0), (128, 388.0), (256, 640.0), (512, 760.0)),
        },
        phases={"fetch": 0.87, "step": 0.31, "callback Throughput": 0.006, "logging": 0.002},
        machine=MACHINE,
        versions={"python": "3.11.9", "torch": "2.14.0", "lightning": "2.6.1"},
        config={"data": {"root": "/fsx/imagenet", "batch_size": BATCH_SIZE, "num_workers": 8}},
        command="imagenet-opt doctor data.root=/fsx/imagenet --json runs/mine/doctor.json",
        date="2026-03-02 10:12",
    )
    return changed(evidence, **changes)


def make_diagnosis(**changes: Any) -> Diagnosis:
    """A run that waits for storage."""
    diagnosis = Diagnosis(
        measurements=make_evidence(),
        sentence="The GPU waits for storage 72 % of the time: /fsx gives 221 images/s, and the GPU takes 774.",
        cause="storage_latency",
        meaning="storage answers late",
        expected=RATES["loader_cold"],
        measured=RATES["full_cold"],
        next_stage="gpu_beside_loader",
        next_gain=RATES["gpu_beside_loader"] / RATES["full_cold"],
        next_rate=RATES["gpu_beside_loader"],
        waterfall=judge(make_evidence()).waterfall,
        findings=(READS, PACK, ENVIRONMENT, QUIET, BLIND),
    )
    return changed(diagnosis, **changes)


def write_run(folder: Path, **changes: Any) -> Path:
    """A run folder with all that a report can show."""
    (folder / ".hydra").mkdir(parents=True)
    (folder / FILE).write_text(as_json(make_diagnosis(**changes)))
    times, waits = np.arange(0, 120, 0.1), np.arange(0.0, 118, 1.2)
    events = [each for begin in waits for each in ((begin, begin + 0.9, "fetch"), (begin + 0.9, begin + 1.2, "step"))]
    recorded(folder, times, events, queue_depth=np.ones(len(times)))
    summary = {"throughput/it_per_second": 0.83, "throughput/images_per_second": 212.4, "steps": 400}
    (folder / "record.json").write_text(json.dumps({"numbers": summary}))
    rows = [f"{step},{212 + step % 7},0.7{step % 9}" for step in range(0, 400, 10)]
    heading = "step,throughput/images_per_second,throughput/data_wait_fraction"
    (folder / "metrics.csv").write_text("\n".join([heading, *rows]) + "\n")
    (folder / ".hydra/config.yaml").write_text("data:\n  root: /fsx/imagenet\n  num_workers: 8\n")
    (folder / ".hydra/overrides.yaml").write_text("- data.root=/fsx/imagenet\n")
    return folder
