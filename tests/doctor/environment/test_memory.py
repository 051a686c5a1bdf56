from collections.abc import Callable

import pytest

from imagenet_opt.data.budget import fit_loader
from imagenet_opt.doctor.environment.memory import check_memory, check_page_cache, check_shared_memory
from imagenet_opt.doctor.environment.setup import Setup
from imagenet_opt.doctor.remedies import DataPlace

MIB, GIB = 2**20, 2**30


@pytest.mark.parametrize("size_mib", [64, 4000, 13_999, 14_337, 60_000])
def test_it_fires_where_the_loader_has_to_do_with_less(setup: Callable[..., Setup], size_mib: int) -> None:
    """8 workers x (4 + 3) x 64 MiB, twice, in half of the room: 14336 MiB."""
    budget = fit_loader(
        num_workers=8, prefetch_factor=4, batch_bytes=64 * MIB, cpus=8, memory=1000 * GIB, shared_memory=size_mib * MIB
    )
    found = check_shared_memory(
        setup(fitted_workers=budget.num_workers, fitted_prefetch=budget.prefetch_factor), free=size_mib * MIB
    )
    assert found.fired == (budget.message is not None) == (size_mib < 14_336)
    if found.fired:
        assert "docker run --shm-size=15g ..." in found.commands
        assert f"data.num_workers={budget.num_workers}" in found.overrides


def test_batches_take_half_of_the_memory_at_most(setup: Callable[..., Setup]) -> None:
    assert check_memory(setup(), available=15 * GIB).fired is False
    found = check_memory(setup(), available=13 * GIB)
    assert found.fired and "7.00 GiB" in found.evidence and found.commands == ("sbatch --mem=15G ...",)


def test_the_share_of_the_data_that_stays_in_memory(setup: Callable[..., Setup]) -> None:
    found = check_page_cache(setup(), available=int(38.5 * GIB))  # of which batches take 3.5
    assert found.fired and "25% fits" in found.evidence
    assert found.commands[0].startswith("imagenet-opt pack data.root=/fsx/imagenet ")
    assert check_page_cache(setup(), available=144 * GIB).fired is False


def test_shards_are_not_packed_again(setup: Callable[..., Setup]) -> None:
    found = check_page_cache(setup(data=DataPlace("/packed", packed=True)), available=GIB)
    assert found.commands == ("imagenet-opt pack data.root=YOUR_ORIGINALS out=/local/disk/packed max_side=256",)


def test_a_strange_folder_stays_one_word_of_one_line(setup: Callable[..., Setup]) -> None:
    command = check_page_cache(setup(data=DataPlace("/a b\n; rm -r x")), available=GIB).commands[0]
    assert "'data.root=/a b\\n; rm -r x'" in command and "\n" not in command
