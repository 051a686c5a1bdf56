"""Decodes a region of an ordinary JPEG with nvImageCodec on the CPU, without the rest of the image.

The pixels have the same bits as after a whole decode by torchvision and a crop.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imagenet_opt.data.decode.image_file import is_whole_jpeg
from imagenet_opt.errors import first_line

Pixels = NDArray[np.uint8]
"""RGB, (height, width, 3)."""
Box = tuple[int, int, int, int]
"""Top, left, height, width, in pixels."""


def load_codec() -> Any:
    """nvImageCodec's module; None if it is not installed. If it is loaded before a fork, workers share its memory."""
    os.environ.setdefault("PYNVIMGCODEC_VERBOSITY", "0")
    with _no_stderr():  # nvImageCodec reports every GPU library that it does not find
        try:
            from nvidia import nvimgcodec
        except ImportError:
            return None
    return nvimgcodec


class RegionCodec:
    """nvImageCodec on the CPU, without threads. error: why this process has no decoder, so that every image is
    decoded whole; "" if it has one."""

    def __init__(self, nvimgcodec: Any) -> None:
        self.library = nvimgcodec
        self.decoder: Any = None
        self.error = ""
        try:
            with _no_stderr():
                self.decoder = nvimgcodec.Decoder(
                    device_id=nvimgcodec.NVIMGCODEC_DEVICE_CPU_ONLY,
                    backends=[nvimgcodec.Backend(nvimgcodec.CPU_ONLY)],
                    max_num_cpu_threads=1,
                )
        except Exception as error:  # nvImageCodec does not export its type of error
            self.error = first_line(error)
        self.params = nvimgcodec.DecodeParams(apply_exif_orientation=False, color_spec=nvimgcodec.ColorSpec.SRGB)
        self.image: Any = None

    def parse(self, encoded: bytes) -> Any:
        """The stream of a complete JPEG in grey or YCbCr; None for all other files."""
        if not is_whole_jpeg(encoded):
            return None
        colour = self.library.ColorSpec
        try:
            stream = self.library.CodeStream(encoded)
            known = stream.codec_name == "jpeg" and stream.color_spec in (colour.SYCC, colour.GRAY)
            return stream if known and stream.precision in (0, 8) else None
        except Exception:  # nvImageCodec does not export its type of error; each property reads the header
            return None

    def decode(self, stream: Any, box: Box) -> Pixels | None:
        """The box's pixels, in memory that the next call reuses; None if the codec gives up."""
        if self.decoder is None:
            return None
        top, left, height, width = box
        part = stream.get_sub_code_stream(region=self.library.Region(top, left, top + height, left + width))
        self.image = self.decoder.decode(part, image=self.image, params=self.params)
        if self.image is None:
            return None
        return np.asarray(self.image)


class NoCodec:
    """Replaces RegionCodec if nvImageCodec is not installed: every image is decoded whole."""

    error = ""

    def parse(self, encoded: bytes) -> Any:
        return None

    def decode(self, stream: Any, box: Box) -> Pixels | None:
        return None


@contextmanager
def _no_stderr() -> Iterator[None]:
    """Discard the output of C libraries to file descriptor 2."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def region_codec() -> RegionCodec | NoCodec:
    """The codec of this process. A fork gets a new codec."""
    return _codec_of(os.getpid())


@lru_cache(1)
def _codec_of(process: int) -> RegionCodec | NoCodec:
    library = load_codec()
    return NoCodec() if library is None else RegionCodec(library)
