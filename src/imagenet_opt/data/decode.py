"""Encoded images to pixels, of the wanted crop only where the file allows it.

nvImageCodec decodes a region of ordinary JPEGs without building the rest of the picture, bit for bit as a whole decode
and a crop would. Other JPEGs go to torchvision, and what that refuses to Pillow, as all else: whole.
"""

import io
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, sqrt
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from imagenet_opt.errors import BadSample

Pixels = NDArray[np.uint8]
"""RGB, (height, width, 3)."""
Box = tuple[int, int, int, int]
"""Top, left, height, width, in pixels."""

_START, _END = b"\xff\xd8", b"\xff\xd9"
_TAIL = 1024
"""Bytes at the end of a JPEG in which its end mark must be; some writers pad."""
_MOST_PIXELS = 2**29
"""Of JPEGs, which have no other limit here: a progressive one takes up to 6 bytes a pixel, whatever the crop."""
_REFUSED = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)
"""What Pillow raises for files that it does not open."""


@dataclass(frozen=True)
class Opened:
    """An image whose size is known. Of `stream` regions can be decoded; without one, `whole` has all pixels."""

    encoded: bytes
    name: str
    height: int
    width: int
    stream: Any = None
    whole: Pixels | None = None


class Decoder:
    """Decodes crops, one thread a process.

    exif_rotation: turn images as their EXIF data says; ImageNet's usual numbers are without.
    max_crop_pixels: larger crops come smaller by a whole factor, averaged.
    """

    def __init__(self, *, exif_rotation: bool = False, max_crop_pixels: int = 2**22) -> None:
        self.exif_rotation = exif_rotation
        self.max_crop_pixels = max_crop_pixels

    def open(self, encoded: bytes, name: str) -> Opened:
        """Raises BadSample, with `name`, for what nothing opens."""
        if not encoded:
            raise BadSample(f"{name} is empty (0 bytes); restore the file or remove it (data.root)")
        turned = self.exif_rotation and b"Exif\0" in encoded[:4096]
        stream = None if turned else _codec().parse(encoded)
        if stream is not None:
            _check_size(name, stream.height, stream.width)
            return Opened(encoded, name, stream.height, stream.width, stream)
        try:
            width, height = _pillow(encoded).size
        except _REFUSED as error:
            raise _bad(name, error) from error
        _check_size(name, height, width)
        if height * width > self.max_crop_pixels and not turned:
            return Opened(encoded, name, height, width)
        whole = decode_whole(encoded, name, exif_rotation=turned)
        return Opened(encoded, name, whole.shape[0], whole.shape[1], whole=whole)

    def crop(self, image: Opened, box: Box) -> Pixels:
        """Pixels of `box`, fewer where that is more than max_crop_pixels; valid until the next call.

        Raises BadSample.
        """
        top, left, height, width = box
        large = height * width > self.max_crop_pixels
        pixels = image.whole
        if pixels is None:
            if large or image.stream is None:
                return _reduced(image, box, self.max_crop_pixels)
            region = _codec().decode(image.stream, box)
            if region is not None:
                return region
            pixels = decode_whole(image.encoded, image.name, exif_rotation=False)
        crop = pixels[top : top + height, left : left + width]
        return _means(Image.fromarray(crop), self.max_crop_pixels) if large else crop


def decode_whole(encoded: bytes, name: str, *, exif_rotation: bool) -> Pixels:
    """All pixels: of JPEGs by torchvision, of what it refuses and of all else by Pillow.

    torchvision crashes on damaged PNGs (pytorch/vision#3613 and later). 16 bits a channel become 8; of an animation the
    first frame counts. Raises BadSample, with `name`.
    """
    from torchvision.io import ImageReadMode, decode_jpeg

    try:
        if encoded[:2] == _START:
            data = torch.frombuffer(bytearray(encoded), dtype=torch.uint8)
            found = decode_jpeg(data, ImageReadMode.RGB, apply_exif_orientation=exif_rotation)
            return np.ascontiguousarray(found.permute(1, 2, 0).numpy())
    except (RuntimeError, ValueError):
        pass
    try:
        image = _pillow(encoded)
        return np.array(_rgb(ImageOps.exif_transpose(image) if exif_rotation else image))
    except _REFUSED as error:
        raise _bad(name, error) from error


def _reduced(image: Opened, box: Box, max_pixels: int) -> Pixels:
    """The crop smaller by a whole factor: JPEGs by decoding fewer frequencies, then the mean of squares of pixels."""
    top, left, height, width = box
    factor = ceil(sqrt(height * width / max_pixels))
    try:
        picture = _pillow(image.encoded)
        picture.draft("RGB", (max(1, image.width // factor), max(1, image.height // factor)))
        across, down = picture.width / image.width, picture.height / image.height
        right, bottom = ceil((left + width) * across), ceil((top + height) * down)
        with _no_bomb_warning():
            crop = picture.crop((int(left * across), int(top * down), right, bottom))
        return _means(_rgb(crop), max_pixels)
    except _REFUSED as error:
        raise _bad(image.name, error) from error


def _means(crop: Image.Image, max_pixels: int) -> Pixels:
    """Means of the smallest squares of pixels that bring the crop down to max_pixels."""
    factor = 1
    while -(-crop.width // factor) * -(-crop.height // factor) > max(1, max_pixels):
        factor += 1
    return np.array(crop.reduce(factor))  # copied, as torch wants arrays that can be written to


def _rgb(image: Image.Image) -> Image.Image:
    """Pillow alone would cut 16 bits off at 255."""
    if image.mode.startswith("I"):
        image = Image.fromarray((np.asarray(image) >> 8).clip(0, 255).astype(np.uint8))
    return image.convert("RGB")


def _check_size(name: str, height: int, width: int) -> None:
    if height * width > _MOST_PIXELS:
        raise BadSample(
            f"cannot decode {name}: it claims {width} x {height} pixels, as damaged files do; "
            "replace the file or remove it (data.root)"
        )


def _pillow(encoded: bytes) -> Image.Image:
    """The image, not yet decoded. Pillow's limit of pixels holds but for JPEGs, decoded at a fitting scale."""
    limit = Image.MAX_IMAGE_PIXELS
    try:
        if encoded[:2] == _START:
            Image.MAX_IMAGE_PIXELS = None
        with _no_bomb_warning():
            return Image.open(io.BytesIO(encoded))
    finally:
        Image.MAX_IMAGE_PIXELS = limit


@contextmanager
def _no_bomb_warning() -> Iterator[None]:
    """Pillow warns from half of its limit on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        yield


def _bad(name: str, error: Exception) -> BadSample:
    reason = "no image that any decoder knows" if isinstance(error, UnidentifiedImageError) else str(error)
    return BadSample(f"cannot decode {name}: {reason}; replace the file or remove it (data.root)")


def load_codec() -> Any:
    """nvImageCodec's module, None where it is not installed. Loaded before a fork, its memory is shared by workers."""
    os.environ.setdefault("PYNVIMGCODEC_VERBOSITY", "0")
    with _no_stderr():  # it tells there of every GPU library that it does not find
        try:
            from nvidia import nvimgcodec
        except ImportError:
            return None
    return nvimgcodec


class RegionCodec:
    """nvImageCodec on the CPU, without a thread of its own."""

    def __init__(self, nvimgcodec: Any) -> None:
        self.library = nvimgcodec
        with _no_stderr():
            self.decoder = nvimgcodec.Decoder(
                device_id=nvimgcodec.NVIMGCODEC_DEVICE_CPU_ONLY,
                backends=[nvimgcodec.Backend(nvimgcodec.CPU_ONLY)],
                max_num_cpu_threads=1,
            )
        self.params = nvimgcodec.DecodeParams(apply_exif_orientation=False, color_spec=nvimgcodec.ColorSpec.SRGB)
        self.image: Any = None

    def parse(self, encoded: bytes) -> Any:
        """The stream of a complete JPEG in grey or YCbCr; None for all else."""
        if encoded[:2] != _START or encoded.rfind(_END, -_TAIL) < 0:
            return None
        colour = self.library.ColorSpec
        try:
            stream = self.library.CodeStream(encoded)
            known = stream.codec_name == "jpeg" and stream.color_spec in (colour.SYCC, colour.GRAY)
            return stream if known and stream.precision in (0, 8) else None
        except Exception:  # its own type of error is not exported; headers are read when they are asked for
            return None

    def decode(self, stream: Any, box: Box) -> Pixels | None:
        """The box's pixels, in memory that the next call uses again; None where the codec gives up."""
        top, left, height, width = box
        part = stream.get_sub_code_stream(region=self.library.Region(top, left, top + height, left + width))
        self.image = self.decoder.decode(part, image=self.image, params=self.params)
        if self.image is None:
            return None
        return np.asarray(self.image)


class NoCodec:
    """Stands in where nvImageCodec is not installed: every image is decoded whole."""

    def parse(self, encoded: bytes) -> Any:
        return None

    def decode(self, stream: Any, box: Box) -> Pixels | None:
        return None


@contextmanager
def _no_stderr() -> Iterator[None]:
    """What C libraries write to file descriptor 2 goes nowhere."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _codec() -> RegionCodec | NoCodec:
    return _codec_of(os.getpid())


@lru_cache(1)
def _codec_of(process: int) -> RegionCodec | NoCodec:
    """One a process: what was made before a fork is not used after it."""
    library = load_codec()
    return NoCodec() if library is None else RegionCodec(library)
