"""Encoded images to pixels, of the wanted crop only where the file allows it.

nvImageCodec decodes a region of ordinary JPEGs without building the rest of the picture, bit for bit as a whole decode
and a crop would. Whatever it may not do so exactly goes to torchvision, and what that refuses to Pillow, whole.
"""

import io
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
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
            return Opened(encoded, name, stream.height, stream.width, stream)
        try:
            width, height = _pillow(encoded).size
        except _REFUSED as error:
            raise _bad(name, error) from error
        if height * width > self.max_crop_pixels and not turned:
            return Opened(encoded, name, height, width)
        whole = decode_whole(encoded, name, exif_rotation=turned)
        return Opened(encoded, name, whole.shape[0], whole.shape[1], whole=whole)

    def crop(self, image: Opened, box: Box) -> Pixels:
        """Pixels of `box`, fewer where that is more than max_crop_pixels; valid until the next call.

        Raises BadSample.
        """
        top, left, height, width = box
        if height * width > self.max_crop_pixels or (image.stream is None and image.whole is None):
            return _reduced(image, box, self.max_crop_pixels)
        pixels = image.whole
        if pixels is None:
            region = _codec().decode(image.stream, box)
            if region is not None:
                return region
            pixels = decode_whole(image.encoded, image.name, exif_rotation=False)
        return pixels[top : top + height, left : left + width]


def decode_whole(encoded: bytes, name: str, *, exif_rotation: bool) -> Pixels:
    """All pixels; torchvision first, Pillow for what it refuses.

    16 bits a channel become 8; of an animation the first frame counts. Raises BadSample, with `name`.
    """
    from torchvision.io import ImageReadMode, decode_image
    from torchvision.transforms.v2.functional import to_dtype

    try:
        data = torch.frombuffer(bytearray(encoded), dtype=torch.uint8)
        found = decode_image(data, ImageReadMode.RGB, apply_exif_orientation=exif_rotation)
        found = to_dtype(found if found.dim() == 3 else found[0], torch.uint8, scale=True)
        return np.ascontiguousarray(found.permute(1, 2, 0).numpy())
    except (RuntimeError, ValueError):
        pass
    try:
        image = _pillow(encoded)
        turned = ImageOps.exif_transpose(image) if exif_rotation else image
        return np.asarray(turned.convert("RGB"))
    except _REFUSED as error:
        raise _bad(name, error) from error


def _reduced(image: Opened, box: Box, max_pixels: int) -> Pixels:
    """The crop smaller by a whole factor: JPEGs by decoding fewer frequencies, then the mean of squares of pixels."""
    top, left, height, width = box
    factor = int(np.ceil(np.sqrt(height * width / max_pixels)))
    try:
        picture = _pillow(image.encoded)
        picture.draft("RGB", (image.width // factor, image.height // factor))
        across, down = picture.width / image.width, picture.height / image.height
        edges = (left * across, top * down, (left + width) * across, (top + height) * down)
        crop = picture.crop(tuple(round(edge) for edge in edges)).convert("RGB")  # type: ignore[arg-type]
        rest = 1
        while -(-crop.width // rest) * -(-crop.height // rest) > max(1, max_pixels):
            rest += 1
        return np.asarray(crop.reduce(rest))
    except _REFUSED as error:
        raise _bad(image.name, error) from error


def _pillow(encoded: bytes) -> Image.Image:
    """The image, not yet decoded. Pillow's limit of pixels holds but for JPEGs, decoded at a fitting scale."""
    limit = Image.MAX_IMAGE_PIXELS
    try:
        if encoded[:2] == _START:
            Image.MAX_IMAGE_PIXELS = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            return Image.open(io.BytesIO(encoded))
    finally:
        Image.MAX_IMAGE_PIXELS = limit


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
        try:
            stream = self.library.CodeStream(encoded)
        except Exception:  # its own type of error is not exported
            return None
        colour = self.library.ColorSpec
        known = stream.codec_name == "jpeg" and stream.color_spec in (colour.SYCC, colour.GRAY)
        return stream if known and stream.precision in (0, 8) else None

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
