"""Turns the batch of a worker into the images that the network gets."""

from dataclasses import replace

import torch

from imagenet_opt.data.batch import Batch, RaggedBatch
from imagenet_opt.data.transforms.augment import augment
from imagenet_opt.data.transforms.image_format import ImageFormat
from imagenet_opt.data.transforms.normalize import normalize
from imagenet_opt.data.transforms.random_erasing import erase
from imagenet_opt.data.transforms.resize import resize_batch


def to_images(batch: Batch | RaggedBatch, format: ImageFormat) -> Batch:
    """A worker's batch as images of this format, for training augmented, on the device where it is.

    Crops become normalised images in one kernel, unless there is something to do before normalising.
    """
    drawn = batch.augmentation
    layers = drawn.layers if drawn is not None else ()
    if isinstance(batch, RaggedBatch):
        batch = resize_batch(batch, replace(format, dtype=torch.uint8) if layers else format)
    if not batch.images.is_floating_point():
        pixels = augment(batch.images, layers) if layers else batch.images
        batch = replace(batch, images=normalize(pixels, format))
    if drawn is not None and drawn.erased is not None:
        erase(batch.images, drawn.erased)
    return batch
