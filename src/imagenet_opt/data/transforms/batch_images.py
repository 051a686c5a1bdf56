"""Turns the batch of a worker into images for the network."""

from dataclasses import replace

import torch

from imagenet_opt.data.batch import Batch, RaggedBatch
from imagenet_opt.data.transforms.augment import augment
from imagenet_opt.data.transforms.image_format import ImageFormat, normalize
from imagenet_opt.data.transforms.random_erasing import erase
from imagenet_opt.data.transforms.resize import resize_ragged


def to_images(batch: Batch | RaggedBatch, format: ImageFormat) -> Batch:
    """The batch as images of this format, augmented as the worker drew, on the device of the batch.

    One kernel makes normalised images of crops, unless the augmentation needs pixels before normalising.
    """
    drawn = batch.augmentation
    layers = drawn.layers if drawn is not None else ()
    if isinstance(batch, RaggedBatch):
        ragged = (batch.pixels, batch.heights, batch.widths, batch.offsets, batch.flips)
        resized_format = replace(format, dtype=torch.uint8) if layers else format
        images = resize_ragged(*ragged, size=batch.key.image_size, format=resized_format)
        facts = (batch.labels, batch.indices, batch.valid, batch.key, batch.stats, None)
        batch = Batch(*facts, images, augmentation=drawn)
    if not batch.images.is_floating_point():
        pixels = augment(batch.images, layers) if layers else batch.images
        batch = replace(batch, images=normalize(pixels, format))
    if drawn is not None and drawn.erased is not None:
        erase(batch.images, drawn.erased)
    return batch
