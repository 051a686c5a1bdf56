"""Data sets of the Hugging Face Hub, from a server on this machine."""

from pathlib import Path

import pytest

from imagenet_opt.data.index.open_index import open_index
from imagenet_opt.errors import ConfigError, DataError, DatasetNotFound, ImagenetOptError, StorageForbidden
from imagenet_opt.pack.pack import pack
from tests.data.parquet.files import write_set
from tests.hub_server import TOKEN, Hub
from tests.pack.packs import SMALL, samples_of

URL = "hf://datasets/owner/name"


def test_read_like_its_folder(hub: Path, images_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_set(hub / "owner/name", images_root, compression="none")
    write_set(hub / "owner/name/a", images_root, compression="none")
    expected = samples_of(open_index(images_root, "val", tmp_path / "cache"))
    for url in (URL, f"{URL}@main/", "hf://datasets/owner/name@main/a"):
        assert samples_of(open_index(url, "val", tmp_path / "cache")) == expected
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert samples_of(open_index(URL, "val", tmp_path / "cache")) == expected
    with pytest.raises(DataError, match=r"data\.root"):
        open_index(URL, "train", tmp_path / "cache")


def test_packs_of_the_hub_resume(hub: Path, images_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, cache = write_set(hub / "owner/name", images_root, row_group_size=5), str(tmp_path / "cache")
    pack(root, tmp_path / "expected", SMALL)
    with pytest.raises(DataError, match=f"imagenet-opt pack data.root={URL} out=PACKED"):
        open_index(URL, "train", Path(cache))
    for split in ("train", "val"):
        open_index(URL, split, Path(cache), to_pack=True)
    monkeypatch.setattr(Hub, "parts_left", 20)
    with pytest.raises(StorageForbidden, match="HF_TOKEN"):
        pack(URL, tmp_path / "out", SMALL, cache_dir=cache)
    assert [*(tmp_path / "out").rglob("*.tar")], "complete shards are kept"
    monkeypatch.setattr(Hub, "parts_left", 10**6)
    packed = pack(URL, tmp_path / "out", SMALL, cache_dir=cache)
    assert 0 < packed.images_seen < packed.images == 78
    for shard in (tmp_path / "expected").rglob("*.tar"):
        assert (tmp_path / "out" / shard.relative_to(tmp_path / "expected")).read_bytes() == shard.read_bytes()
    assert not [*(tmp_path / "hub_cache").rglob("*.parquet")], "nothing is downloaded"


REFUSED: list[tuple[str, str, type[ImagenetOptError], str]] = [
    ("hf://owner/name", "", ConfigError, "expected hf://datasets/OWNER/NAME"),
    ("hf://datasets/owner/name/../../x", "", ConfigError, "expected hf://datasets/OWNER/NAME"),
    ("hf://datasets/owner/missing", "", DatasetNotFound, "check the name"),
    ("hf://datasets/owner/private", "", DatasetNotFound, "HF_TOKEN"),
    ("hf://datasets/owner/gated", "", StorageForbidden, "ask for access"),
    (URL, "hf_wrong", StorageForbidden, "refuses the token"),
    (f"{URL}@v9", "", DatasetNotFound, "revision"),
    ("hf://datasets/owner/tars", "", DatasetNotFound, "no Parquet files"),
    ("hf://datasets/owner/several", "", DatasetNotFound, "Add the folder"),
]


@pytest.mark.parametrize("case", REFUSED, ids=[f"{each[0]} {each[1]}" for each in REFUSED])
def test_what_cannot_be_read_is_one_line_with_the_remedy(
    case: tuple[str, str, type, str], hub: Path, images_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, token, kind, words = case
    for name in ("name", "private", "gated", "several/a"):
        write_set(hub / "owner" / name, images_root, compression="none")
    (hub / "owner/tars").mkdir()
    (hub / "owner/tars/train.tar").write_bytes(b"")
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(ImagenetOptError) as caught:
        open_index(url, "train", tmp_path / "cache")
    assert type(caught.value) is kind and "\n" not in str(caught.value)
    assert all(word in str(caught.value) for word in (words, url, "data.root"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    if "private" in url or "gated" in url or token:
        assert len(open_index(url, "train", tmp_path / "cache")) == 39, "with the right token"


def test_a_hub_that_does_not_answer_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ImagenetOptError, match=r"data\.root.*HF_ENDPOINT"):
        open_index(URL, "train", tmp_path / "cache")
