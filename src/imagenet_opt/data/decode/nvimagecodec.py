"""nvImageCodec on the CPU: decodes a region of ordinary JPEGs without the rest of the image."""

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imagenet_opt.errors import first_line, printable

Pixels = NDArray[np.uint8]
"""RGB, (height, width, 3)."""
Box = tuple[int, int, int, int]
"""Top, left, height, width, in pixels."""
_START, _END = b"\xff\xd8", b"\xff\xd9"
_TAIL = 1024
"""The end mark of a JPEG must be within these last bytes; some writers add padding."""


def is_jpeg(encoded: bytes) -> bool:
    return encoded[:2] == _START


def is_whole_jpeg(encoded: bytes) -> bool:
    """Whether the bytes have the start mark and the end mark of a JPEG, so that no decoder searches for the end."""
    return is_jpeg(encoded) and encoded.rfind(_END, -_TAIL) >= 0


def load_codec() -> Any:
    """nvImageCodec's module. If it is loaded before a fork, workers share its memory. Raises ImportError."""
    os.environ.setdefault("PYNVIMGCODEC_VERBOSITY", "0")
    with no_stderr():  # nvImageCodec reports every GPU library that it does not find
        from nvidia import nvimgcodec
    return nvimgcodec


class RegionCodec:
    """nvImageCodec on the CPU, without threads. error: why this process cannot decode with it; "" if it can."""

    def __init__(self) -> None:
        self.decoder: Any = None
        self.error = ""
        try:
            self.library = library = load_codec()
            with no_stderr():
                decoder = library.Decoder(
                    device_id=library.NVIMGCODEC_DEVICE_CPU_ONLY,
                    backends=[library.Backend(library.CPU_ONLY)],
                    max_num_cpu_threads=1,
                )
            self.params = library.DecodeParams(apply_exif_orientation=False, color_spec=library.ColorSpec.SRGB)
            self._stderr = CapturedStderr()
            self.decoder = decoder
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
            has_size = stream.height > 0 and stream.width > 0  # a JPEG may state its height after the pixels
            return stream if known and has_size and stream.precision in (0, 8) else None
        except Exception:  # nvImageCodec does not export its type of error; each property reads the header
            return None

    def decode(self, stream: Any, box: Box) -> Pixels | None:
        """The box's pixels, in memory that the next call reuses; None if the codec gives up."""
        top, left, height, width = box
        right = max(left + width, min(2, stream.width))  # libjpeg smooths the first column alone in another way
        try:
            part = stream.get_sub_code_stream(region=self.library.Region(top, left, top + height, right))
        except Exception:
            return None
        self.image = self._decoded(part, self.image)
        return None if self.image is None else np.asarray(self.image)[:, :width]

    def decode_whole(self, stream: Any) -> Pixels | None:
        """All pixels, in memory of their own, because whole images may be large; None if the codec gives up."""
        image = self._decoded(stream)
        return None if image is None else np.asarray(image)

    def take_warning(self) -> str:
        """What the codec printed since the last call, in one line."""
        return "" if self.decoder is None else self._stderr.take()

    def _decoded(self, stream: Any, image: Any = None) -> Any:
        with self._stderr:
            try:
                return self.decoder.decode(stream, image=image, params=self.params)
            except Exception:  # Pillow gets its try
                return None


def region_codec() -> RegionCodec:
    """The codec of this thread, whose memory no other thread reuses. A fork gets a new codec."""
    return _codec_of(os.getpid(), threading.get_ident())


@cache  # a fork must not free the codec of its parent
def _codec_of(process: int, thread: int) -> RegionCodec:
    return RegionCodec()


class CapturedStderr:
    """Captures what C libraries print to `stderr` within `with`.

    libjpeg prints its warnings there, and nvImageCodec has no option for them. Only C's variable `stderr` changes, not
    file descriptor 2, so the output of Python and of other processes goes its usual way.
    """

    def __init__(self) -> None:
        self._file = os.memfd_create("stderr")
        library = ctypes.CDLL(None)
        library.fdopen.argtypes, library.fdopen.restype = (ctypes.c_int, ctypes.c_char_p), ctypes.c_void_p
        self._captured = library.fdopen(self._file, b"w")
        library.setbuf(ctypes.c_void_p(self._captured), None)
        self._stderr = ctypes.c_void_p.in_dll(library, "stderr")
        self._usual = _usual_stderr()

    def __enter__(self) -> None:
        self._stderr.value = self._captured

    def __exit__(self, *error: object) -> None:
        self._stderr.value = self._usual

    def take(self) -> str:
        """The text since the last call, in one line."""
        if not (size := os.lseek(self._file, 0, os.SEEK_CUR)):
            return ""
        text = os.pread(self._file, size, 0).decode(errors="replace")
        os.ftruncate(self._file, 0)
        os.lseek(self._file, 0, os.SEEK_SET)
        return printable("; ".join(text.splitlines()))


@cache  # as it was before the first capture: another thread may capture now
def _usual_stderr() -> int | None:
    return ctypes.c_void_p.in_dll(ctypes.CDLL(None), "stderr").value


@contextmanager
def no_stderr() -> Iterator[None]:
    """Discard the output of C libraries to file descriptor 2."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
