"""Forecasts size and speed of a pack: packs some images in memory, and decodes them and their originals in turns."""

import time
from dataclasses import dataclass

from imagenet_opt.compare.gain import gain_of
from imagenet_opt.compare.rounds import in_rounds
from imagenet_opt.data.storage.store import MemoryStore
from imagenet_opt.errors import BadSample
from imagenet_opt.pack.image import PackOptions, prepare
from imagenet_opt.probe.testbed import Testbed

_MOST_IMAGES = 96
_BATCH = 64
_ROUNDS = 6
_ORIGINALS, _PACKED = "originals", "packed"


@dataclass(frozen=True)
class PackForecast:
    """What packing gives. option: of `imagenet-opt pack`, such as "for=224". speedup: images/s that a worker decodes
    from packed images / from the originals. bytes_ratio: bytes packed / bytes of the originals."""

    option: str
    speedup: float
    bytes_ratio: float


def forecast(testbed: Testbed, option: str, options: PackOptions) -> PackForecast | None:
    """Pack some of the images that `testbed.samples` has read, in memory, and make batches of both kinds in turns.

    In each turn both kinds have the same images and crops. None if no image can be packed. option: of the command,
    for the result.
    """
    originals, packed = [], []
    for encoded in testbed.samples.encoded[:_MOST_IMAGES]:
        try:
            packed.append(prepare(encoded, options)[0])
        except BadSample:
            continue
        originals.append(encoded)
    if not packed:
        return None
    index, batches = testbed.samples.in_memory, {}
    for name, images in ((_ORIGINALS, originals), (_PACKED, packed)):  # random crops, made in this process
        store = MemoryStore(images, len(index))
        batches[name] = iter(testbed.loader(index, store, num_workers=0, batch_size=_BATCH).loader)

    def rate(name: str, number: int) -> float:
        began = time.perf_counter()
        next(batches[name])
        return _BATCH / (time.perf_counter() - began)

    in_rounds(batches, rate, range(1))  # the first batches warm up
    speedup = gain_of(in_rounds(batches, rate, range(_ROUNDS)), _PACKED, _ORIGINALS).ratio
    return PackForecast(option, speedup.ratio, sum(map(len, packed)) / sum(map(len, originals)))
