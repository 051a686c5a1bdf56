from dataclasses import replace

import pytest

from imagenet_opt.data.budget import fit_loader
from imagenet_opt.doctor.environment.memory import Batches, check_memory, check_page_cache, check_shared_memory
from imagenet_opt.doctor.remedies import DataPlace

MIB, GIB = 2**20, 2**30
BATCHES = Batches(num_workers=8, fitted_workers=8, prefetch_factor=4, fitted_prefetch=4, batch_bytes=64 * MIB)


@pytest.mark.parametrize("size_mib", [64, 4000, 13_999, 14_337, 60_000])
def test_it_fires_if_the_loader_has_to_reduce_its_batches(size_mib: int) -> None:
    """8 workers x (4 + 3) x 64 MiB, twice, in half of the room: 14336 MiB."""
    memory = {"memory": 1000 * GIB, "shared_memory": size_mib * MIB}
    budget = fit_loader(num_workers=8, prefetch_factor=4, batch_bytes=64 * MIB, cpus=8, **memory)
    batches = replace(BATCHES, fitted_workers=budget.num_workers, fitted_prefetch=budget.prefetch_factor)
    finding = check_shared_memory(batches, free=size_mib * MIB)
    assert finding.fired == (budget.message is not None) == (size_mib < 14_336)
    if finding.fired:
        assert "docker run --shm-size=15g ..." in finding.commands
        assert f"data.num_workers={budget.num_workers}" in finding.overrides


def test_batches_take_half_of_the_memory_at_most() -> None:
    assert check_memory(BATCHES, available=15 * GIB).fired is False
    finding = check_memory(BATCHES, available=13 * GIB)
    assert finding.fired and finding.commands == ("sbatch --mem=15G ...",)
    assert finding.evidence.startswith(
        "8 workers x 4 batches ahead need up to 7.00 GiB, more than 50% of the 13.00 GiB"
    )


def test_the_share_of_the_data_that_stays_in_memory() -> None:
    data, size = DataPlace("/fsx/imagenet"), 140 * GIB
    finding = check_page_cache(BATCHES, data, data_bytes=size, available=int(38.5 * GIB))  # batches take 3.5 GiB
    assert finding.fired and "25% fits" in finding.evidence
    assert finding.commands[0].startswith("imagenet-opt pack data.root=/fsx/imagenet ")
    assert check_page_cache(BATCHES, data, data_bytes=size, available=144 * GIB).fired is False


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (DataPlace("/packed", packed=True), "data.root=YOUR_ORIGINALS"),  # shards are not packed again
        (DataPlace("/a b\n; rm -r x"), "'data.root=/a b\\n; rm -r x'"),  # one word of one line
    ],
)
def test_the_command_packs_the_original_images(data: DataPlace, word: str) -> None:
    (command,) = check_page_cache(BATCHES, data, data_bytes=140 * GIB, available=GIB).commands
    assert command == f"imagenet-opt pack {word} out=/local/disk/packed max_side=256"
