"""Processes that found different things refuse to train, all of them and in one line."""

import shutil
from functools import partial
from pathlib import Path

import pytest

from imagenet_opt.errors import RanksDiffer
from tests.config.configs import fitted, tiny
from tests.processes import on_ranks

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*sync_dist=True"),
    pytest.mark.filterwarnings("ignore:You.re resuming from a checkpoint"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]
TWO = (*("trainer.devices=2", "trainer.strategy=ddp", "trainer.limit_val_batches=0"), "data.batch_size=3")
NOT_NEEDED = ("timeline", "gpu_utilization", "bottleneck", "preemption")


def fit(rank: int, roots: tuple[Path, Path], runs: tuple[Path, Path], max_steps: int) -> int:
    """Each process has a machine of its own: a data set, a cache and a run folder."""
    place = runs[rank]
    words = [*TWO, f"trainer.max_steps={max_steps}", *(f"~callbacks.{name}" for name in NOT_NEEDED)]
    return fitted(tiny(place, roots[rank], *words)).trainer.global_step


@pytest.mark.slow
def test_machines_with_equal_data_train_and_other_files_or_another_checkpoint_on_one_rank_are_refused(
    images_root: Path, tmp_path: Path
) -> None:
    def refused(second: Path, max_steps: int, *words: str) -> None:
        for error in on_ranks(partial(fit, roots=(images_root, second), runs=runs, max_steps=max_steps)):
            assert isinstance(error, RanksDiffer) and "\n" not in str(error)
            assert all(word in str(error) for word in ("data.root", "hydra.run.dir", *words))

    runs = (tmp_path / "a", tmp_path / "b")
    same = Path(shutil.copytree(images_root, tmp_path / "same"))
    larger = Path(shutil.copytree(images_root, tmp_path / "larger"))
    folder = larger / "train" / "class0"
    shutil.copy(next(folder.iterdir()), folder / "one_more.JPEG")
    refused(larger, 1, "rank 1 differs from rank 0: training images 40 instead of 39; ")
    assert on_ranks(partial(fit, roots=(images_root, same), runs=runs, max_steps=2)) == [2, 2]
    refused(same, 3, "rank 1 differs from rank 0: checkpoint of step none instead of 2; ")
