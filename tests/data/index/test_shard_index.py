"""Packed splits: what is read, with how many requests, and what is said of damage."""

import json
import os
import pickle
import resource
import shutil
import subprocess
import sys
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from imagenet_opt.data.index.shard_index import ShardIndex, ShardStore, is_packed, open_shards
from imagenet_opt.errors import BadSample, ShardMismatch
from imagenet_opt.pack.pack import pack
from imagenet_opt.pack.plan import PackOptions


@pytest.fixture(scope="module")
def packed(images_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """39 images in five shards or so: train/ of a pack."""
    out = tmp_path_factory.mktemp("packed") / "out"
    pack(images_root, out, PackOptions(shard_mb=0.03))
    return out / "train"


@pytest.fixture
def copy(packed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(packed, tmp_path / "out" / "train"))


def original(root: Path, index: ShardIndex, i: int) -> bytes:
    return (root / "train" / index.path(i).partition(": ")[2]).read_bytes()


def test_any_sample_is_read_in_any_order(packed: Path, images_root: Path) -> None:
    index = open_shards(packed)
    assert len(index.shards) > 3 and isinstance(index.offsets, np.memmap)
    indices = np.array([38, 0, 7, 7, 20, 1, 38])
    store = ShardStore(index)
    assert store.read_many(indices) == [original(images_root, index, i) for i in indices]
    assert store.read_many(np.array([], dtype=np.int64)) == []
    assert store.name(5) == index.path(5)
    assert index.path(0).startswith(f"{packed}/shard-00000.tar: class")


def test_labels_and_checksums_are_those_of_the_images(packed: Path, images_root: Path) -> None:
    index = open_shards(packed)
    assert index.classes == ("class0", "class1", "class2")
    for i in range(len(index)):
        assert f": {index.classes[index.labels[i]]}/" in index.path(i)
    assert sorted(index.path(i).partition(": ")[2] for i in range(len(index))) == sorted(
        str(path.relative_to(images_root / "train")) for path in images_root.glob("train/*/*")
    )


def test_offsets_are_where_tar_says_that_the_images_are(packed: Path) -> None:
    index = open_shards(packed)
    for number, shard in enumerate(index.shards):
        with tarfile.open(packed / shard) as archive:
            images = [member for member in archive if not member.name.endswith(".cls")]
        rows = index.shard_ids == number
        assert index.offsets[rows].tolist() == [image.offset_data for image in images]
        assert index.sizes[rows].tolist() == [image.size for image in images]


def made_up(shard_ids: list[int], offsets: list[int], sizes: list[int]) -> ShardIndex:
    """An index without files."""
    zeros = np.zeros(len(sizes), dtype=np.int32)
    shards = tuple(f"shard-{i:05d}.tar" for i in range(max(shard_ids) + 1))
    names = np.zeros(0, np.uint8), np.zeros(len(sizes) + 1, np.int64)
    places = np.array(shard_ids, np.int32), np.array(offsets), np.array(sizes)
    return ShardIndex(Path("/nowhere"), ("a",), zeros, shards, *places, zeros.astype(np.uint32), *names)


def groups(index: ShardIndex, indices: list[int]) -> list[list[int]]:
    return [group.tolist() for group in ShardStore(index).groups(np.array(indices, dtype=np.int64))]


def test_neighbours_come_together_and_others_alone() -> None:
    index = made_up([0, 0, 0, 1], [512, 2048, 2048 + 1000 + 65536, 70000], [1000, 1000, 1000, 1000])
    assert groups(index, [0, 1, 2, 3]) == [[0, 1], [2], [3]]  # 64 KiB between, and another shard
    assert groups(index, [3, 1, 0]) == [[2, 1], [0]]  # places in what was asked, by place in the shard
    assert groups(index, [1, 1, 1]) == [[0, 1, 2]]
    assert groups(index, []) == []
    closer = made_up([0, 0], [512, 512 + 1000 + 65535], [1000, 1000])
    assert groups(closer, [0, 1]) == [[0, 1]]


def test_a_request_has_at_most_4_mib() -> None:
    sizes = [2**20] * 9
    index = made_up([0] * 9, [i * 2**20 for i in range(9)], sizes)
    assert groups(index, list(range(9))) == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]
    large = made_up([0, 0, 0], [0, 512, 6 * 2**20], [512, 5 * 2**20, 512])
    assert groups(large, [0, 1, 2]) == [[0], [1], [2]]


def test_every_place_is_in_one_group(packed: Path) -> None:
    indices = np.random.default_rng(0).integers(0, 39, size=64)
    places = np.concatenate(ShardStore(open_shards(packed)).groups(indices))
    assert sorted(places.tolist()) == list(range(64))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # of Python 3.12, where threads run
def test_threads_and_forks_share_a_store(packed: Path, images_root: Path) -> None:
    index = open_shards(packed)
    store, everything = ShardStore(index), np.arange(39)
    expected = [original(images_root, index, i) for i in range(39)]
    store.read_many(np.array([0]))
    child = os.fork()
    if child == 0:  # pragma: no cover
        os._exit(0 if store.read_many(everything) == expected else 1)
    together = threading.Barrier(8)

    def read(_: int) -> list[bytes]:
        together.wait()
        return store.read_many(everything)

    with ThreadPoolExecutor(8) as threads:
        assert all(found == expected for found in threads.map(read, range(8)))
    assert os.waitpid(child, 0)[1] == 0


def test_files_are_closed_with_the_store(packed: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    store = ShardStore(open_shards(packed))
    store.read_many(np.arange(39))
    assert len(os.listdir("/proc/self/fd")) >= len(before) + len(store.index.shards)
    del store
    assert len(os.listdir("/proc/self/fd")) <= len(before)


def test_another_process_gets_a_store_by_its_folder_alone(packed: Path, images_root: Path) -> None:
    store = ShardStore(open_shards(packed))
    frozen = pickle.dumps(store)
    assert len(frozen) < 1000
    assert pickle.loads(frozen).read_many(np.array([3])) == [original(images_root, store.index, 3)]


def test_more_shards_than_open_files_allowed_raises_the_limit(packed: Path) -> None:
    code = (
        "import resource, sys; from pathlib import Path; import numpy as np\n"
        "from imagenet_opt.data.index.shard_index import ShardStore, open_shards\n"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))\n"
        "ShardStore(open_shards(Path(sys.argv[1])))\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    done = subprocess.run([sys.executable, "-c", code, packed], capture_output=True, text=True)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert int(done.stdout) == (2**16 if hard == resource.RLIM_INFINITY else min(2**16, hard))


def test_a_shard_cut_after_it_was_opened_is_a_bad_sample_with_place_and_remedy(copy: Path) -> None:
    store = ShardStore(open_shards(copy))
    last = np.flatnonzero(store.index.shard_ids == 0)[-1:]
    offset, size = int(store.index.offsets[last[0]]), int(store.index.sizes[last[0]])
    os.truncate(copy / "shard-00000.tar", offset + 10)
    with pytest.raises(BadSample) as caught:
        store.read_many(last)
    message = str(caught.value)
    assert f"shard-00000.tar ends at byte {offset + 10}, in the middle of {size} bytes at {offset}" in message
    assert f"imagenet-opt pack out={copy.parent} --verify" in message


def test_a_shard_that_comes_back_is_read_again(copy: Path) -> None:
    store = ShardStore(open_shards(copy))
    (copy / "shard-00000.tar").rename(copy / "away")
    with pytest.raises(FileNotFoundError):
        store.read_many(np.array([0]))
    (copy / "away").rename(copy / "shard-00000.tar")
    assert len(store.read_many(np.array([0]))[0]) == store.index.sizes[0]


class Evil:
    def __reduce__(self) -> tuple:
        return os._exit, (66,)


def npy_header(text: str) -> bytes:
    padded = text.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded


def change(folder: Path, **about: object) -> None:
    content = json.loads((folder / "index.json").read_text())
    (folder / "index.json").write_text(json.dumps(content | about))


def damage(folder: Path, what: str) -> None:
    """One of the ways in which a pack goes bad."""
    match what:
        case "no shard":
            (folder / "shard-00001.tar").unlink()
        case "cut shard":
            os.truncate(folder / "shard-00001.tar", 1024)
        case "no column":
            (folder / "sizes.npy").unlink()
        case "cut column":
            os.truncate(folder / "offsets.npy", 200)
        case "short column":
            np.save(folder / "labels.npy", np.zeros(5, np.int32))
        case "other type":
            np.save(folder / "labels.npy", np.zeros(39, np.int64))
        case "wild label":
            np.save(folder / "labels.npy", np.full(39, 3, np.int32))
        case "wild offset":
            np.save(folder / "offsets.npy", np.full(39, 10**9))
        case "label below zero":
            np.save(folder / "labels.npy", np.full(39, -1, np.int32))
        case "shard below zero":
            np.save(folder / "shard_ids.npy", np.full(39, -1, np.int32))
        case "size below zero":
            np.save(folder / "sizes.npy", np.full(39, -1))
        case "offset and size overflow":
            np.save(folder / "offsets.npy", np.full(39, 2**63 - 1))
            np.save(folder / "sizes.npy", np.full(39, 2**63 - 1))
        case "samples overlap":
            np.save(folder / "offsets.npy", np.full(39, 512))
        case "shards out of order":
            np.save(folder / "shard_ids.npy", np.load(folder / "shard_ids.npy")[::-1])
        case "names overlap":
            np.save(folder / "name_offsets.npy", np.load(folder / "name_offsets.npy")[::-1])
        case "pickled":
            np.save(folder / "labels.npy", np.array([Evil()] * 39, dtype=object), allow_pickle=True)
        case "archive":
            with open(folder / "labels.npy", "wb") as file:
                np.savez(file, labels=np.zeros(39, np.int32))
        case "more than there is":
            header = "{'descr': '<i4', 'fortran_order': False, 'shape': (4611686018427387904,)}"
            (folder / "labels.npy").write_bytes(npy_header(header) + bytes(39 * 4))
        case "shape below zero":
            header = "{'descr': '<i4', 'fortran_order': False, 'shape': (-39,)}"
            (folder / "labels.npy").write_bytes(npy_header(header) + bytes(39 * 4))
        case "other shards":
            change(folder, shards=[{"bytes": 2**70, "crc32": 0}])
        case "classes are no names":
            change(folder, classes=[[1], 2])
        case "no samples":
            change(folder, samples=0)
        case "deep":
            (folder / "index.json").write_text("[" * 100_000)
        case "no header":
            (folder / "names.npy").write_bytes(b"\0" * 300)
        case "unfinished":
            (folder / "index.json").unlink()
        case "damaged index":
            (folder / "index.json").write_text("{")
        case "other format":
            (folder / "index.json").write_text('{"format": 99}')


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("no shard", "shard-00001.tar: No such file or directory"),
        ("cut shard", "shard-00001.tar has 1024 bytes, not the "),
        ("no column", "sizes.npy cannot be opened: No such file"),
        ("cut column", "offsets.npy has 200 bytes, not those of 39 numbers"),
        ("short column", "labels.npy is int32 (5,), not 39 numbers of int32"),
        ("other type", "labels.npy is int64 (39,), not 39 numbers of int32"),
        ("wild label", "labels.npy is damaged: it has numbers outside of 0 to 2"),
        ("wild offset", "points outside of its shard"),
        ("label below zero", "labels.npy is damaged: it has numbers outside of 0 to 2"),
        ("shard below zero", "shard_ids.npy is damaged: it has numbers outside of 0 to "),
        ("size below zero", "points outside of its shard"),
        ("offset and size overflow", "points outside of its shard"),
        ("samples overlap", "is damaged: samples overlap"),
        ("shards out of order", "is damaged"),
        ("names overlap", "name_offsets.npy is damaged"),
        ("pickled", "labels.npy is object (39,), not 39 numbers of int32"),
        ("archive", "labels.npy cannot be opened"),
        ("more than there is", "labels.npy is int32 (4611686018427387904,), not 39 numbers of int32"),
        ("shape below zero", "labels.npy is int32 (-39,), not 39 numbers of int32"),
        ("other shards", "index.json is damaged: shards.0.bytes: "),
        ("classes are no names", "index.json is damaged: classes.0: "),
        ("no samples", "index.json is damaged: samples: "),
        ("deep", "index.json is damaged: Invalid JSON: recursion limit exceeded"),
        ("no header", "names.npy cannot be opened"),
        ("unfinished", "is no finished pack: it has no index.json"),
        ("damaged index", "index.json is damaged"),
        ("other format", "index.json is of format 99, not 1"),
    ],
)
def test_damage_is_told_with_the_file_and_the_remedy(what: str, words: str, copy: Path) -> None:
    damage(copy, what)
    assert is_packed(copy)
    with pytest.raises(ShardMismatch) as caught:
        open_shards(copy)
    for word in (words, str(copy), "data.root", "pack command again", f"out={copy.parent}", "imagenet-opt pack"):
        assert word in str(caught.value)
    has_index = "shard-00001.tar" in words
    assert ("--verify lists" in str(caught.value)) == has_index, "without an index there is nothing to verify against"
    assert "\n" not in str(caught.value)


def test_an_index_cannot_lead_out_of_its_folder(copy: Path, tmp_path: Path) -> None:
    shards = json.loads((copy / "index.json").read_text())["shards"]
    for name in ("../../secret", str(tmp_path / "secret")):
        change(copy, shards=[shard | {"name": name} for shard in shards])
        assert open_shards(copy).shards[0] == "shard-00000.tar"


def test_a_folder_of_images_is_no_pack(images_root: Path, tmp_path: Path) -> None:
    assert not is_packed(images_root / "train") and not is_packed(tmp_path / "absent")
