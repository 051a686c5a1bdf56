"""Samples below a URL: "in memory" is the local cache, "on storage" the service."""

from pathlib import Path

import pytest

from imagenet_opt.data.index.open_index import open_index
from imagenet_opt.measure.storage.page_cache import evict, residency
from imagenet_opt.probe.remote_samples import RemoteSamples, samples_of
from tests.conftest import loading, write_images
from tests.faulty_proxy import FaultyProxy
from tests.object_server import upload

pytestmark = pytest.mark.slow

NUM = 66


@pytest.fixture
def url(bucket: str, proxy: FaultyProxy, tmp_path: Path) -> str:
    return upload(write_images(tmp_path / "images", num_classes=3, per_class=NUM // 3), f"{bucket}/in1k")


def samples(url: str, cache: Path, **how: float) -> RemoteSamples:
    made = samples_of(open_index(url, "train", cache), loading(**how))
    assert isinstance(made, RemoteSamples)
    return made


def num_requests(proxy: FaultyProxy) -> int:
    return sum(path.endswith(".JPEG") for path in proxy.paths)


def test_samples_on_storage_are_requests_and_samples_in_memory_come_from_the_cache(
    url: str, proxy: FaultyProxy, tmp_path: Path
) -> None:
    own = samples(url, tmp_path / "cache")
    assert own.residency().share == 0 and own.cache_room == 1
    rows, eviction = own.cold()
    assert eviction.verified
    proxy.paths.clear()
    assert all(own.read_and_drop(rows[:7])) and own.read_and_drop(rows[:7]) == own.read_and_drop(rows[:7])
    assert num_requests(proxy) == 21 and own.residency().share == 0
    own.warm(0.0)
    assert own.kept().share == 1 and own.residency().share == len(own.warm_rows) / NUM
    assert own.cache is not None
    (segment,) = (own.cache.path / "segments").iterdir()
    left = residency(str(segment)).share
    evict(str(segment), write_out=True)
    if residency(str(segment)).share == 0:  # pages can be evicted here; the kernel keeps one that another CPU uses
        assert left is not None and left < 1, "what was written to the cache leaves the page cache"
    proxy.paths.clear()
    assert own.read(own.warm_rows) == own.encoded and not num_requests(proxy)
    once = iter(["503"])
    proxy.fault = lambda number, path: next(once, "")
    assert own.read_and_drop(rows[:1])[0] and not list(once), "a refusal is no quick answer"
    proxy.fault = lambda number, path: ""
    proxy.paths.clear()
    listed = own.listed(own.warm_rows[:5], 20)
    assert own.store_for(listed, cold=False).read_many(own.rows[:0]) == []
    index = own.rows[:5] % 20
    assert own.store_for(listed, cold=False).read_many(index) and not num_requests(proxy)
    assert own.store_for(listed, cold=True).read_many(index) and num_requests(proxy) == 5
