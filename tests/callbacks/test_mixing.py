"""What is mixed, when, and that it depends on the place in the run only."""

from types import SimpleNamespace

import pytest
import torch

from imagenet_opt.callbacks.mixing import Mixing, cutmix
from imagenet_opt.errors import ConfigError
from tests.callbacks.conftest import Named


def mixed(project, *, max_epochs=2, max_steps=-1, **options):
    return project.fit(Mixing(num_classes=3, **options), max_epochs=max_epochs, max_steps=max_steps).seen


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


def mix_at(batch, *, seed: int = 0, epoch: int = 0, batch_idx: int = 0, rank: int = 0):
    place = SimpleNamespace(current_epoch=epoch, global_rank=rank, max_epochs=10, max_steps=-1, num_training_batches=1)
    Mixing(mode="on", num_classes=3, seed=seed).on_train_batch_start(place, None, batch, batch_idx)
    return batch


def test_every_place_mixes_in_its_own_way() -> None:
    def shares(**place: int) -> float:
        return mix_at([torch.rand(2, 3, 32, 32), torch.tensor([0, 1])], **place)[1][0, 0].item()

    places = [{}, {"seed": 1}, {"epoch": 1}, {"batch_idx": 1}, {"rank": 1}]
    assert len({shares(**place) for place in places}) == len(places)
    assert shares(epoch=1) == shares(epoch=1)


def test_a_batch_with_names_is_mixed_as_a_list_is() -> None:
    pair = {"images": torch.rand(4, 3, 8, 8), "labels": torch.arange(4) % 3}
    named, of_dict, listed = map(mix_at, (Named(**pair), {**pair}, [*pair.values()]))
    for made in (named.images, named.labels), of_dict.values():
        assert all(map(torch.equal, made, listed))


def test_the_last_epochs_may_see_plain_images(project) -> None:
    """YAML reads the mode `on` as a boolean."""
    mixed_batches = mixed(project, mode=True, last_epochs_off=1, max_epochs=9, max_steps=20)
    assert [labels.ndim for _, labels in mixed_batches] == [2] * 10 + [1] * 10


def test_a_run_of_which_no_epoch_is_mixed_is_refused(project) -> None:
    with pytest.raises(ConfigError, match=r"callbacks\.mixing\.last_epochs_off=2"):
        mixed(project, mode="on", last_epochs_off=2)


def test_mode_off_mixes_nothing(project) -> None:
    torch.testing.assert_close(mixed(project, mode="off"), project.fit().seen, rtol=0, atol=0)


@pytest.mark.parametrize("center", [(0.5, 0.5), (0.99, 0.2)])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_cutmix_pastes_a_box_and_counts_what_is_left(share: float, center: tuple[float, float]) -> None:
    images = torch.zeros(2, 1, 40, 40)
    images[1] = 1
    mixed, left = cutmix(images, share, center)
    assert left == pytest.approx(1 - mixed[0].mean().item())
    assert left == pytest.approx(mixed[1].mean().item())
    if center == (0.5, 0.5):
        assert left == pytest.approx(share, abs=0.06)
