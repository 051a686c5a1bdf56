"""A pack into a bucket, or from a bucket, is the pack of the folder to the last byte, and resumes."""

from pathlib import Path

import pytest

from imagenet_opt.data.index.open_index import open_index
from imagenet_opt.errors import ConfigError, ShardMismatch, StorageFailed
from imagenet_opt.pack.pack import pack
from imagenet_opt.pack.verify import open_packed, verify
from tests.faulty_proxy import FaultyProxy
from tests.object_server import client, objects, put, upload
from tests.pack.packs import SMALL, contents

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "imagenet_opt"


def packed(folder: Path) -> dict[str, bytes]:
    return {name: content for name, content in contents(folder).items() if name != "claim"}


@pytest.mark.parametrize(("from_bucket", "workers"), [(False, 0), (True, 2)])
def test_a_pack_in_a_bucket_is_that_of_a_folder(
    images_root: Path, whole: Path, bucket: str, cache: Path, from_bucket: bool, workers: int
) -> None:
    root = upload(images_root, f"{bucket}/in1k") if from_bucket else images_root
    first = pack(root, f"{bucket}/out", SMALL, workers=workers)
    expected, actual = packed(whole), objects(f"{bucket}/out")
    plans = {f"{split}/plan.json" for split in ("train", "val")}  # they name the source
    assert actual.keys() == expected.keys()
    assert all((from_bucket and name in plans) or actual[name] == expected[name] for name in expected)
    assert list((cache / "pack").rglob("*.tar")) == []
    assert pack(root, f"{bucket}/out", SMALL).images_seen == 0 < first.images_seen == 78
    for split in ("train", "val"):
        assert verify(open_packed(f"{bucket}/out/{split}"), 2) == []


def test_a_stopped_pack_keeps_its_shards_on_another_machine(
    images_root: Path, whole: Path, proxy: FaultyProxy, bucket: str, tmp_path: Path
) -> None:
    third = sorted(path.name for path in (whole / "train").glob("*.tar"))[2]
    proxy.fault = lambda number, path: "403" * path.endswith(f"/train/{third}")
    with pytest.raises(StorageFailed, match=rf"^{bucket}/out/train/{third} \(out\): .*no right to do that"):
        pack(images_root, f"{bucket}/out", SMALL, cache_dir=str(tmp_path / "one"))
    with pytest.raises(ShardMismatch, match="no finished pack"):
        open_index(f"{bucket}/out", "train", tmp_path / "index")
    assert list((tmp_path / "one").rglob("*.tar")) == []

    proxy.fault, before = lambda number, path: "", len(proxy.paths)
    pack(images_root, f"{bucket}/out", SMALL, cache_dir=str(tmp_path / "two"))
    again = {path for path in proxy.paths[before:] if "/out/train/" in path and path.endswith(".tar")}
    assert not any(path.endswith(("shard-00000.tar", "shard-00001.tar")) for path in again)
    assert any(path.endswith(third) for path in again)
    assert objects(f"{bucket}/out") == packed(whole)


def test_damaged_shards_are_named_and_lost_ones_written_again(images_root: Path, whole: Path, bucket: str) -> None:
    pack(images_root, f"{bucket}/out", SMALL)
    shard = objects(f"{bucket}/out")["val/shard-00001.tar"]
    put(f"{bucket}/out/val/shard-00001.tar", shard[:700] + b"damaged" + shard[707:])
    (line,) = verify(open_packed(f"{bucket}/out/val"), 2)
    assert line == f"{bucket}/out/val/shard-00001.tar: the bytes do not match the checksum"
    client().delete_object(Bucket=bucket.removeprefix("s3://"), Key="out/train/shard-00001.tar")
    put(f"{bucket}/out/val/shard-00001.tar", b"cut")
    words = rf"shard-00001.tar is missing .*\(out={bucket}/out\).*it keeps intact shards"
    with pytest.raises(ShardMismatch, match=words):
        open_packed(f"{bucket}/out/train")
    assert 0 < pack(images_root, f"{bucket}/out", SMALL).images_seen < 78
    assert objects(f"{bucket}/out") == packed(whole)
    with pytest.raises(ConfigError, match=rf"no pack in {bucket}/other/train \(out\)"):
        open_packed(f"{bucket}/other/train")


def test_what_a_pack_into_a_bucket_refuses(images_root: Path, bucket: str, cache: Path) -> None:
    def message(kind: type[Exception], out: str, root: Path | str = images_root) -> str:
        with pytest.raises(kind) as raised:
            pack(root, out, SMALL)
        return str(raised.value)

    put(f"{bucket}/thesis/val/chapter.txt", b"x")
    assert "/thesis/val is not empty and has no plan.json" in message(ConfigError, f"{bucket}/thesis")
    assert list(objects(f"{bucket}/thesis")) == ["val/chapter.txt"]
    url = upload(images_root, f"{bucket}/in1k")
    for out in (url, f"{url}/train/packed", bucket):
        assert "overlap" in message(ConfigError, out, url)
    assert "is no bucket" in message(ConfigError, "https://host/packed")
    assert "no such bucket" in message(StorageFailed, "s3://no-such-bucket/packed")
    (cache / "pack").rename(cache / "old")
    (cache / "pack").write_text("")
    assert "choose another folder with data.cache_dir=" in message(ConfigError, f"{bucket}/new")
