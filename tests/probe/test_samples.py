"""Which samples experiments take, and what is known of their place."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from imagenet_opt.data.index.folder_index import open_split
from imagenet_opt.measure.storage.page_cache import Extent, evict, probed, residency
from imagenet_opt.probe.samples import Samples
from tests.conftest import let_others_read, loading, write_images


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_images(tmp_path / "images", num_classes=3, per_class=60)


def samples(root: Path, cache: Path, **how: int) -> Samples:
    return Samples(open_split(root, "train", cache), loading(**how))


def test_what_was_glanced_at_is_read_by_no_experiment(root: Path, tmp_path: Path) -> None:
    found = samples(root, tmp_path)
    found.glance()
    glanced = set(found.warm_rows.tolist())
    assert len(glanced) == len(found.encoded) == 32
    found.glance()
    assert not glanced & set(found.take(180 - 32).tolist())


def test_what_is_read_and_dropped_is_on_storage_again(root: Path, tmp_path: Path) -> None:
    """So each pass over a few files is one of the storage, and files that were brought into memory stay there."""
    found = samples(root, tmp_path)
    rows = found.take(8)
    for path in (extent.path for extent in found.extents(rows)):
        evict(path, write_out=True)
    if any(residency(extent.path).share != 0 for extent in found.extents(rows)):
        pytest.skip("nothing can be evicted here")
    kept, dropped = found.read(rows), found.read_and_drop(rows)
    assert kept == dropped and all(kept)
    assert {residency(extent.path).share for extent in found.extents(rows)} == {0.0}
    found.warm(0.0)
    assert found.kept().share == 1.0


def test_cold_samples_come_with_the_evidence(root: Path, tmp_path: Path) -> None:
    found = samples(root, tmp_path)
    path = found.extents(found.rows[:1])[0].path
    evict(path, write_out=True)
    if residency(path).share != 0:
        pytest.skip("nothing can be evicted here")
    rows, eviction = found.cold()
    assert eviction.verified and eviction.num_files == len(rows)


def test_samples_of_others_are_cold_by_those_that_were_probed(root: Path, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to be somebody else")
    if probed([Extent(__file__)]).share is None:
        pytest.skip("this file system has no RWF_NOWAIT")
    let_others_read(root, tmp_path)
    child = f"""
import os, sys
sys.path[:] = {sys.path!r}
from pathlib import Path
from imagenet_opt.measure.storage import page_cache
from tests.probe.test_samples import samples
page_cache._CACHESTAT = 100_000
found = samples(Path({str(root)!r}), Path({str(tmp_path)!r}))
os.sync()
os.setgid(65534), os.setuid(65534)
seen = found.residency()
assert seen.share == 1 and "RWF_NOWAIT" in seen.method, seen
for _ in range(5):  # the kernel keeps pages that wait in the list of another CPU
    evidence = found.cold()[1].evidence
    if evidence.startswith("verified"):
        break
print(evidence)
"""
    ran = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith(
        "verified: 0.0% of 32 files is still in memory (preadv2 with RWF_NOWAIT, on a sample of similar files"
    )
