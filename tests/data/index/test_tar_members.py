"""Members of tars of all formats, beside Python's tarfile; tars that are cut, damaged or hostile."""

import io
import random
import tarfile
from pathlib import Path

import pytest

from imagenet_opt.data.index.tar_members import FileBytes, StreamBytes, TarError, has_end_mark, members
from tests.data.index.tars import header, members_of, tar

FILES = [
    ("a.cls", b"7"),
    ("a.jpg", bytes(9000)),
    ("empty.cls", b""),
    ("f.older/b.jpg", b"x" * 512),
    (f"{'n' * 90}/{'m' * 80}/ü.jpg", b"y" * 513),
    (f"{'deep/' * 60}{'n' * 200}.jpg", b"z"),
]


def in_tarfile(content: bytes) -> list[tuple[str, int, int]]:
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        return [(m.name, m.offset_data, m.size) for m in archive if m.isfile()]


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_members_are_those_of_tarfile_from_a_file_and_from_a_stream(format: int, tmp_path: Path) -> None:
    files = FILES[: 5 if format == tarfile.USTAR_FORMAT else None]
    mtime = 1.5 if format == tarfile.PAX_FORMAT else 1
    content = tar(files, format=format, mtime=mtime)
    (tmp_path / "x.tar").write_bytes(content)
    found = members_of(tmp_path / "x.tar")
    assert [(name.decode(), start, size) for name, start, size, _ in found] == in_tarfile(content)
    stream = StreamBytes(content[i : i + 1000] for i in range(0, len(content), 1000))
    found = members(stream.read, len(content))
    read = [(name.decode(), stream.read(start, size)) for name, start, size, _ in found]
    assert read == files


def test_other_members_do_not_hide_files(tmp_path: Path) -> None:
    """A shared PAX header, links with long targets, folders, a size in binary and a path with ./ in it."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "9 path=x\n"}) as out:
        for name, kind in (("d", tarfile.DIRTYPE), ("l", tarfile.SYMTYPE), ("h", tarfile.LNKTYPE)):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, "t" * 300 if kind != tarfile.DIRTYPE else ""
            out.addfile(entry)
    size = (512).to_bytes(12, "big")
    plain = bytearray(header("./d//b.jpg", 512))
    plain[124:136] = bytes([0x80]) + size[1:]
    plain[148:156] = b" " * 8
    plain[148:156] = f"{sum(plain):06o}\0 ".encode()
    start = file.getvalue().rstrip(b"\0")
    start += bytes(-len(start) % 512)
    (tmp_path / "x.tar").write_bytes(start + plain + bytes(512) + header("e", 1, kind=b"0") + b"1")
    found = [(name, size, is_file) for name, _, size, is_file in members_of(tmp_path / "x.tar")]
    assert found == [(b"l", 0, False), (b"h", 0, False), (b"d/b.jpg", 512, True), (b"e", 1, True)]


def test_the_end_mark_may_be_missing_and_is_seen(tmp_path: Path) -> None:
    content = tar(FILES)
    cut = content.rstrip(b"\0")
    for kept, has_mark in ((content, True), (cut + bytes(-len(cut) % 512), False)):
        (tmp_path / "x.tar").write_bytes(kept)
        with open(tmp_path / "x.tar", "rb") as file:
            source = FileBytes(file.fileno())
            assert len(list(members(source.read, len(kept)))) == len(FILES)
            assert has_end_mark(source.read, len(kept)) == has_mark


WHOLE = tar(FILES)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (header("../x.jpg"), "'../x.jpg', which lies outside"),
        (header("/etc/x.jpg"), "'/etc/x.jpg', which lies outside"),
        (header("x.jpg", 2**62), "claims 4611686018427387904 bytes"),
        (header("x.jpg", -512), "claims -512 bytes"),
        (header("x.jpg", kind=tarfile.GNUTYPE_SPARSE), "sparse file 'x.jpg'"),
        (header("x", 2**62, tarfile.XHDTYPE), "a header claims 4611686018427387904 bytes"),
        (header("x", 9, tarfile.XHDTYPE) + b"9 size=-1".ljust(512, b"\0"), "records"),
        (header("x", 11, tarfile.XHDTYPE) + b"11 size=-1\n".ljust(512, b"\0") + header("x"), "size b'-1'"),
        (header("x", 11, tarfile.XHDTYPE) + b"-9 path=ab\n".ljust(512, b"\0") + header("x"), "records"),
        (header("x", kind=tarfile.XHDTYPE) * 4000, "in a row"),
        (header("x", kind=tarfile.XHDTYPE), "ends at byte 512"),
        (WHOLE[:-20000], "cut off, or is still being written"),
        (WHOLE[:700], "ends at byte 700"),
        (WHOLE[:2048] + b"#" * 512 + WHOLE[2560:], "damaged: no header at byte"),
        (WHOLE + WHOLE, "goes on behind"),
        (b"not a tar file at all" * 100, "not a tar file"),
        (b"short", "not a tar file"),
        (b"\x1f\x8b\x08" + bytes(900), "gzip -d"),
    ],
)
def test_a_tar_that_is_cut_damaged_or_hostile_is_refused(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(content)
    with pytest.raises(TarError) as caught:
        members_of(tmp_path / "x.tar")
    assert words in str(caught.value)


def test_damaged_bytes_are_refused_or_leave_all_members_inside_of_the_file(tmp_path: Path) -> None:
    rng = random.Random(0)
    for _ in range(300):
        content = bytearray(WHOLE)
        for _ in range(rng.choice((1, 30))):
            place = rng.randrange(0, len(content), 512) + rng.choice((0, 124, 130, 156, 257, 345, rng.randrange(512)))
            content[place % len(content)] = rng.randrange(256)
        (tmp_path / "x.tar").write_bytes(content)
        try:
            found = members_of(tmp_path / "x.tar")
        except TarError:
            continue
        assert all(0 <= start <= start + size <= len(content) for _, start, size, _ in found)
