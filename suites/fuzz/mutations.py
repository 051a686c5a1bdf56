"""How a real file is damaged, or forged: what a disk, a cut transfer or an attacker makes of it."""

import io
import re
import zipfile

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

_EDGE = 160
"""Bytes at the beginning and the end, where most formats keep their lengths."""
_NUMBERS = (0, 1, 2, 255, 256, 2**15, 2**16 - 1, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**48, 2**63 - 1, 2**63, 2**64 - 1)
_TEXTS = (b"", b"-1", b"1e999", b"NaN", b"9" * 400, b"null", b"[]", b"{}", b'"', b"\\u0000", b"../../x", b"\xff\x00")
_DIGITS = re.compile(rb"-?\d+")
_FRAME = re.compile(rb"\xff[\xc0-\xc2]...(?=....)", re.DOTALL)
"""Of a JPEG, up to its height and width of two bytes each."""


@st.composite
def _place(draw: DrawFn, size: int) -> int:
    edge = min(size, _EDGE)
    first, last = draw(st.sampled_from([(0, edge), (0, edge), (size - edge, size), (0, size)]))
    return draw(st.integers(first, last))


@st.composite
def _step(draw: DrawFn, content: bytes) -> bytes:
    at, size = draw(_place(len(content))), len(content)
    kinds = ["bit", "bits", "length", "length", "text", "digits", "cut", "drop", "double", "swap"]
    frame = _FRAME.search(content)
    kind = draw(st.sampled_from(kinds + ["frame"] * (frame is not None)))
    before, after = content[:at], content[at:]
    if kind == "bit":
        return before + bytes([after[0] ^ 1 << draw(st.integers(0, 7))]) + after[1:] if after else content
    if kind == "bits":
        fresh = draw(st.binary(min_size=1, max_size=8))
        return before + fresh + after[len(fresh) :]
    if kind == "length":
        width = draw(st.sampled_from([1, 2, 4, 8]))
        number = draw(st.sampled_from(_NUMBERS) | st.integers(0, 2 * size)) % 256**width
        return before + number.to_bytes(width, draw(st.sampled_from(["big", "little"]))) + after[width:]
    if kind == "frame" and frame is not None:
        start = frame.end() + draw(st.sampled_from([0, 2]))
        return content[:start] + (draw(st.sampled_from(_NUMBERS)) % 2**16).to_bytes(2, "big") + content[start + 2 :]
    if kind == "text":
        return before + draw(st.sampled_from(_TEXTS)) + after
    if kind == "digits":
        found = _DIGITS.search(content, at) or _DIGITS.search(content)
        number = draw(st.sampled_from(_NUMBERS) | st.integers(-9, 99))
        return content if found is None else content[: found.start()] + str(number).encode() + content[found.end() :]
    if kind == "cut":
        return before
    end = draw(_place(size))
    first, last = sorted((at, end))
    if kind == "drop":
        return content[:first] + content[last:]
    if kind == "double":
        return content[:last] + content[first:last][: 2**16] + content[last:]
    length = min(last - first, size - last, 4096)
    middle = content[first + length : last]
    return (
        content[:first]
        + content[last : last + length]
        + middle
        + content[first : first + length]
        + content[last + length :]
    )


@st.composite
def mutated(draw: DrawFn, content: bytes) -> bytes:
    """One to four damages, one upon the other."""
    for _ in range(draw(st.sampled_from([1, 1, 2, 3, 4]))):
        content = draw(_step(content))
    return content


@st.composite
def repacked(draw: DrawFn, content: bytes) -> bytes:
    """A zip file of which one record is damaged and every checksum is right again."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    name = draw(st.sampled_from([name for name in records if name.endswith(".pkl")] * 8 + list(records)))
    records[name] = draw(mutated(records[name]))
    fresh = io.BytesIO()
    with zipfile.ZipFile(fresh, "w", zipfile.ZIP_STORED) as archive:
        for record, data in records.items():
            archive.writestr(record, data)
    return fresh.getvalue()
