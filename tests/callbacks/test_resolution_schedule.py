"""Sizes by epoch, with a loader that makes them and with one that does not."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import interpolate

from imagenet_opt.callbacks.resolution_schedule import ResolutionSchedule
from tests.callbacks.conftest import Named, Plain, images


def test_sizes_grow_in_steps_and_stay() -> None:
    schedule = ResolutionSchedule(start=128, end=224, grow_from=0.2, grow_until=0.8)
    assert [schedule.size_of(epoch, 10) for epoch in range(10)] == [128] * 4 + [160] * 2 + [192] * 2 + [224] * 2
    shrinking = ResolutionSchedule(start=64, end=32, grow_from=0.0, grow_until=0.5, step=16)
    assert [shrinking.size_of(epoch, 4) for epoch in range(4)] == [64, 48, 32, 32]


@pytest.mark.parametrize("collate_fn", [None, Named.of])
def test_images_of_a_foreign_loader_are_resized_and_the_size_logged(project, collate_fn: Any) -> None:
    class Recording(Plain):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            pixels, labels = (batch.images, batch.labels) if isinstance(batch, Named) else batch
            self.seen.append((pixels.clone(), labels))
            return nn.functional.cross_entropy(self.net(pixels), labels)

    module = Recording()
    module.net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    schedule = ResolutionSchedule(start=4, end=12, grow_from=0.0, grow_until=0.667, step=4)
    project.fit(schedule, module=module, max_epochs=9, max_steps=30, collate_fn=collate_fn)
    assert [pixels.shape[-1] for pixels, _ in module.seen] == [4] * 10 + [8] * 10 + [12] * 10
    first = torch.stack([images()[i][0] for i in range(4)])
    assert torch.equal(module.seen[0][0], interpolate(first, size=(4, 4), mode="bilinear", antialias=True))
    assert project.logger.values("resolution")[:1] == [4.0]
