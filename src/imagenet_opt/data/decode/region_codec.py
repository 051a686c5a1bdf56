"""Decodes a region of an ordinary JPEG with nvImageCodec on the CPU, without the rest of the image.

The pixels have the same bits as after a whole decode by libjpeg-turbo and a crop.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
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
    """nvImageCodec's module. If it is loaded before a fork, workers share its memory. Raises ImportError."""
    os.environ.setdefault("PYNVIMGCODEC_VERBOSITY", "0")
    with _no_stderr():  # nvImageCodec reports every GPU library that it does not find
        from nvidia import nvimgcodec
    return nvimgcodec


class RegionCodec:
    """nvImageCodec on the CPU, without threads. error: why this process cannot decode with it; "" if it can."""

    def __init__(self) -> None:
        self.decoder: Any = None
        self.error = ""
        try:
            self.library = library = load_codec()
            with _no_stderr():
                self.decoder = library.Decoder(
                    device_id=library.NVIMGCODEC_DEVICE_CPU_ONLY,
                    backends=[library.Backend(library.CPU_ONLY)],
                    max_num_cpu_threads=1,
                )
            self.params = library.DecodeParams(apply_exif_orientation=False, color_spec=library.ColorSpec.SRGB)
        except Exception as error:  # nvImageCodec does not export its type of error
            self.error = first_line(error)
        self.image: Any = None

    def parse(self, encoded: bytes) -> Any:
        """The stream of a complete JPEG in grey or YCbCr; None for all other files, and without a decoder."""
        if self.decoder is None or not is_whole_jpeg(encoded):
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
        top, left, height, width = box
        part = stream.get_sub_code_stream(region=self.library.Region(top, left, top + height, left + width))
        self.image = self.decoder.decode(part, image=self.image, params=self.params)
        if self.image is None:
            return None
        return np.asarray(self.image)

    def decode_whole(self, stream: Any) -> Pixels | None:
        """All pixels, in memory of their own, because whole images may be large; None if the codec gives up."""
        image = self.decoder.decode(stream, params=self.params)
        return None if image is None else np.asarray(image)


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


def region_codec() -> RegionCodec:
    """The codec of this process. A fork gets a new codec."""
    return _codec_of(os.getpid())


@cache  # a fork must not free the codec of its parent
def _codec_of(process: int) -> RegionCodec:
    return RegionCodec()
