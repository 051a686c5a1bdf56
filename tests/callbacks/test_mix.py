"""Mixing against its formulas."""

import pytest
import torch

from imagenet_opt.callbacks.mixing import cutmix, mix_labels


@pytest.mark.parametrize("center", [(0.5, 0.5), (0.0, 0.0), (0.99, 0.2)])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.75, 1.0])
def test_cutmix_pastes_a_box_and_counts_what_is_left(share: float, center: tuple[float, float]) -> None:
    images = torch.zeros(2, 1, 40, 40)
    images[1] = 1
    mixed, left = cutmix(images, share, center)
    assert left == pytest.approx(1 - mixed[0].mean().item())
    assert left == pytest.approx(mixed[1].mean().item())
    if center == (0.5, 0.5):
        assert left == pytest.approx(share, abs=0.06)


def test_labels_are_mixed_with_their_mirror() -> None:
    soft = mix_labels(torch.tensor([0, 1, 2]), 0.25, 4)
    expected = torch.tensor([[0.25, 0, 0.75, 0], [0, 1.0, 0, 0], [0.75, 0, 0.25, 0]])
    torch.testing.assert_close(soft, expected)
