"""uint8 pixels to what the network eats, for the whole batch on the device."""

from dataclasses import replace

import torch
from torch import Tensor

from imagenet_opt.data.batch import Batch
from imagenet_opt.data.imagenet import MEAN, STD


class Normalize:
    """Batch of uint8 images to float32 with ImageNet's mean and deviation taken out, one multiply-add a pixel."""

    def __init__(self, device: torch.device) -> None:
        std = torch.tensor(STD).view(1, 3, 1, 1)
        self.factor: Tensor = (1 / (255 * std)).to(device)
        self.offset: Tensor = (-torch.tensor(MEAN).view(1, 3, 1, 1) / std).to(device)

    def __call__(self, batch: Batch) -> Batch:
        return replace(batch, images=torch.addcmul(self.offset, batch.images, self.factor))
