"""What is mixed, when, and that it depends on the place in the run only."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from lightning.pytorch import Callback

from callbacks.checkpoint import Checkpoint
from callbacks.mixing import Mixing
from imagenet_opt.errors import ConfigError
from tests.callbacks.conftest import Named

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers")


def mixed(project, **options):
    return project.fit(Mixing(num_classes=3, **options)).seen


@pytest.mark.parametrize("mode", ["off", False])
def test_off_leaves_everything(project, mode: str | bool) -> None:
    for (images, labels), (original, same) in zip(mixed(project, mode=mode), project.fit().seen, strict=True):
        assert torch.equal(images, original)
        assert torch.equal(labels, same)


def test_mixup_weighs_images_and_labels_alike(project) -> None:
    plain = project.fit().seen
    for (images, soft), (original, labels) in zip(mixed(project, mode="on", cutmix_alpha=0), plain, strict=True):
        share = (soft[0, labels[0]] if labels[0] != labels[3] else soft[1, labels[1]]).item()
        expected = share * original + (1 - share) * original.flip(0)
        torch.testing.assert_close(images, expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(soft.sum(1), torch.ones(4))


def test_cutmix_counts_the_pixels_that_are_left(project) -> None:
    plain = project.fit().seen
    for (images, soft), (original, labels) in zip(mixed(project, mode="on", mixup_alpha=0), plain, strict=True):
        kept = images == original
        assert torch.equal(images, torch.where(kept, original, original.flip(0)))
        left = kept.all(dim=1).double().mean(dim=(1, 2))
        for row in range(4):
            if labels[row] != labels[3 - row]:
                assert soft[row, labels[row]].item() == pytest.approx(left[row].item())


def test_the_same_place_mixes_the_same_whatever_was_drawn_before(project) -> None:
    first = mixed(project, mode="on")
    torch.manual_seed(123)
    second = mixed(project, mode="on")
    for (images, soft), (again, soft_again) in zip(first, second, strict=True):
        assert torch.equal(images, again)
        assert torch.equal(soft, soft_again)
    assert not torch.equal(mixed(project, mode="on", seed=1)[0][0], first[0][0])


def mix_at(batch, *, seed: int = 0, epoch: int = 0, batch_idx: int = 0, rank: int = 0):
    place = SimpleNamespace(current_epoch=epoch, global_rank=rank, max_epochs=10)
    Mixing(mode="on", num_classes=3, seed=seed).on_train_batch_start(place, None, batch, batch_idx)
    return batch


def test_every_place_mixes_in_its_own_way() -> None:
    def shares(**place: int) -> float:
        return mix_at([torch.rand(2, 3, 32, 32), torch.tensor([0, 1])], **place)[1][0, 0].item()

    places = [{}, {"seed": 1}, {"epoch": 1}, {"batch_idx": 1}, {"rank": 1}]
    assert len({shares(**place) for place in places}) == len(places)
    assert shares(epoch=1) == shares(epoch=1)


def test_a_batch_with_names_is_mixed_as_a_list_is() -> None:
    images, labels = torch.rand(4, 3, 8, 8), torch.arange(4) % 3
    named, listed = mix_at(Named(images, labels)), mix_at([images, labels])
    assert torch.equal(named.images, listed[0])
    assert torch.equal(named.labels, listed[1])


def test_a_batch_of_another_kind_is_told() -> None:
    with pytest.raises(ConfigError, match=r"callbacks\.mixing: a tuple.*list \[images, labels\]"):
        mix_at((torch.rand(2, 3, 8, 8), torch.tensor([0, 1])))


def test_the_last_epochs_may_see_plain_images(project) -> None:
    seen = mixed(project, mode=True, last_epochs_off=1)
    assert [labels.ndim for _, labels in seen] == [2] * 10 + [1] * 10


class Busy(Callback):
    """Says how busy the GPU is, as the GPU callback would."""

    def __init__(self, percents: list[float]) -> None:
        self.percents = percents

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx) -> None:
        self.step = trainer.global_step

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        pl_module.log("gpu/utilization_percent", self.percents[self.step // 5])


def test_auto_waits_for_a_busy_gpu_and_stays_on(project) -> None:
    mixing = Mixing(mode="auto", num_classes=3, busy_windows=2)
    seen = project.fit(Busy([90, 50, 85, 99, 10, 10]), mixing, max_epochs=3).seen
    on = [labels.ndim == 2 for _, labels in seen]
    assert on.index(True) == 20
    assert all(on[20:])
    logged = [row["mixing/active"] for _, row in project.logger.rows if "mixing/active" in row]
    assert logged == [0, 0, 0, 1, 1, 1]


def test_the_decision_is_kept_in_the_checkpoint(project, tmp_path: Path) -> None:
    def auto() -> Mixing:
        return Mixing(mode="auto", num_classes=3, busy_windows=2)

    def folder() -> Checkpoint:
        return Checkpoint(folder=str(tmp_path))

    project.fit(Busy([90, 90, 10]), auto(), folder(), max_epochs=1)
    seen = project.fit(Busy([90, 90, 10, 10]), auto(), folder(), ckpt_path=tmp_path / "last.ckpt").seen
    assert [labels.ndim for _, labels in seen] == [2] * 10


@pytest.mark.parametrize(("written", "mixes"), [("on", True), ("off", False), ('"on"', True), ('"off"', False)])
def test_yaml_may_read_the_mode_as_a_boolean(written: str, mixes: bool, project) -> None:
    mode = yaml.safe_load(f"mode: {written}")["mode"]
    assert (mixed(project, mode=mode)[0][1].ndim == 2) is mixes


def test_an_unknown_mode_is_told() -> None:
    with pytest.raises(ConfigError, match=r"callbacks\.mixing\.mode='sometimes'"):
        Mixing(mode="sometimes", num_classes=3)
