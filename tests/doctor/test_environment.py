"""The checks of the machine, on hand-made states of it."""

import shlex
from dataclasses import replace
from typing import Any

import pytest

from imagenet_opt.cli.pack import parse as parse_pack
from imagenet_opt.data.budget import LoaderBudget, fit_loader
from imagenet_opt.doctor.commands import data_words, hydrate, pack
from imagenet_opt.doctor.environment import ENVIRONMENT
from imagenet_opt.doctor.rule import Finding
from imagenet_opt.machine import Mount
from imagenet_opt.measure.telemetry.gpu import GpuState
from tests.doctor.diagnoses import make_evidence

MIB, GIB = 2**20, 2**30
GPU = GpuState(index=3, name="NVIDIA A10G", clock_reasons=0, others=())


def mounted(kind: str, **changes: Any) -> dict[str, Any]:
    return {"mount": Mount("/data", kind, "a device"), **changes}


def fitted(memory_gib: float, shared_gib: float, processes: int = 1) -> LoaderBudget:
    sizes = {"memory": int(memory_gib * GIB), "shared_memory": int(shared_gib * GIB)}
    asked = {"num_workers": 8, "prefetch_factor": 4, "batch_bytes": 20 * MIB}
    return fit_loader(**asked, **sizes, cpus=8 * processes, processes=processes)


def check(rule: str, **changes: Any) -> Finding:
    run = make_evidence(**{"gpu": GPU, **changes})
    return next(each for each in ENVIRONMENT if each.name == rule).look(run)


@pytest.mark.parametrize(
    ("rule", "changes", "fired", "word"),
    [
        # 8 workers x (4 + 3) batches x 20 MiB + 208 MiB each, of two loaders: 2.19 GiB of /dev/shm, 5.44 GiB in all
        ("small_memory", {"budget": fitted(11, 6)}, False, "8 workers x 4 batches ahead need up to 5.44 GiB"),
        ("small_memory", {"budget": fitted(11, 1 / 16)}, True, "docker run --shm-size=5g ..."),
        ("small_memory", {"budget": fitted(60, 5, 8), "num_processes": 8}, True, "8 processes x 8 workers"),
        ("small_memory", {"budget": fitted(6, 6)}, True, "sbatch --mem=11G ..."),
        ("page_cache", {}, True, "imagenet-opt pack data.root=/fsx/imagenet out=/local/disk/packed max_side=256"),
        ("page_cache", {"available_memory": 400 * GIB}, False, "all of it stays in memory"),
        ("page_cache", mounted("tmpfs"), False, "in memory already"),
        ("released_files", mounted("ext4"), None, "not on Lustre"),
        ("released_files", mounted("lustre", checked_files=4, released_files=1), True, "25%"),
        ("gpu_clocks", {"gpu": None}, None, "no CUDA GPU"),
        ("gpu_clocks", {"gpu": replace(GPU, clock_reasons=0x04)}, False, "as usual"),
        ("gpu_clocks", {"gpu": replace(GPU, clock_reasons=0x48)}, True, "hardware slowdown for heat"),
        ("gpu_others", {"gpu": replace(GPU, others=None)}, None, "does not report"),
        ("gpu_others", {"gpu": replace(GPU, others=((41, "python", 9000),))}, True, "python (pid 41, 9000 MiB)"),
    ],
)
def test_a_check_fires_with_its_evidence_and_remedy(
    rule: str, changes: dict[str, Any], fired: bool | None, word: str
) -> None:
    finding = check(rule, **changes)
    assert finding.fired is fired and finding.environment
    assert word in " ".join([finding.evidence, finding.remedy, *finding.commands])
    assert not fired or finding.remedy


def test_commands_can_be_typed() -> None:
    quoted = make_evidence(config={"data": {"root": "/my data/$x", "train_folder": ".", "val_folder": "val"}})
    assert shlex.split(pack(quoted))[2:4] == ["data.root=/my data/$x", "data.train_folder=."]
    for config in ({}, {"data": {"root": None}}, {"data": {"root": "${oc.env:DATA}"}}):
        assert data_words(make_evidence(config=config)) == "data.root=YOUR_FOLDER"
    assert "/fsx/imagenet" not in pack(make_evidence(packed=True), "max_side=500"), "only originals can become smaller"
    url = make_evidence(config={"data": {"root": "s3://b/in", "cache_dir": "/nvme/my cache", "cache_gb": 40}})
    command = "imagenet-opt hydrate data.root=s3://b/in 'data.cache_dir=/nvme/my cache'"
    assert hydrate(url) == f"{command} data.cache_gb=40"
    parse_pack(shlex.split(pack(url))[2:])  # which has no such key
