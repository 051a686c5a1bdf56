"""Which files there are, and that a run goes on from them."""

from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback
from torch import nn

from callbacks.checkpoint import Checkpoint

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers")


def steps(folder: Path) -> list[int]:
    return [int(file.stem.split("_")[1]) for file in sorted((folder / "checkpoints").iterdir())]


def step_of(file: Path) -> int:
    return torch.load(file, weights_only=True)["global_step"]


class Score(Callback):
    def __init__(self, scores: list[float]) -> None:
        self.scores = scores

    def on_validation_epoch_end(self, trainer, pl_module) -> None:
        pl_module.log("val/acc1", self.scores[trainer.current_epoch])


def test_the_newest_are_kept_and_last_is_the_newest(project, tmp_path: Path) -> None:
    project.fit(Checkpoint(folder=str(tmp_path), every_n_steps=4, keep=3))
    assert steps(tmp_path) == [12, 16, 20]
    assert step_of(tmp_path / "last.ckpt") == 20


def test_max_steps_inside_an_epoch_leaves_a_last_checkpoint_there(project, tmp_path: Path) -> None:
    project.fit(Checkpoint(folder=str(tmp_path)), max_steps=13)
    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)
    assert saved["global_step"] == 13
    assert saved["loops"]["fit_loop"]["epoch_loop.batch_progress"]["current"]["completed"] == 3


def test_best_is_replaced_by_better_only(project, tmp_path: Path) -> None:
    project.fit(Score([0.2, 0.6, 0.5]), Checkpoint(folder=str(tmp_path)), max_epochs=3)
    assert step_of(tmp_path / "best.ckpt") == 20
    assert step_of(tmp_path / "last.ckpt") == 30


@pytest.mark.parametrize("more", [{}, {"max_steps": 30}])
def test_a_run_cut_at_an_epoch_ends_as_the_whole_one(project, tmp_path: Path, more: dict[str, int]) -> None:
    """With dropout, so that the random state matters."""
    from tests.callbacks.conftest import Plain

    def module() -> Plain:
        made = Plain()
        made.net = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(192, 3))
        torch.manual_seed(3)
        for parameter in made.net.parameters():
            nn.init.normal_(parameter)
        return made

    whole = project.fit(Checkpoint(folder=str(tmp_path / "a")), module=module(), max_epochs=3, **more)
    project.fit(Checkpoint(folder=str(tmp_path / "b")), module=module(), max_epochs=2)
    torch.manual_seed(99)
    again = module()
    project.fit(
        Checkpoint(folder=str(tmp_path / "b")),
        module=again,
        max_epochs=3,
        ckpt_path=tmp_path / "b/last.ckpt",
        **more,
    )
    assert project.trainer.global_step == 30
    for a, b in zip(whole.net.parameters(), again.net.parameters(), strict=True):
        assert torch.equal(a, b)
