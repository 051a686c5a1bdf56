"""Parquet files as datasets and pyarrow write them."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow", reason="needs pyarrow, which writes the files")
pq = pytest.importorskip("pyarrow.parquet")

NAMES = ["tench", "gold fish", "shark"]
LABELS = [i * 7 % 3 for i in range(250)]
IMAGES = [random.Random(i % 200).randbytes(i % 200 * 97) for i in range(250)]
"""Of 0 to 19,303 bytes; fifty are there twice."""


def table(
    images: Sequence[bytes | None] = IMAGES,
    labels: Sequence[Any] = LABELS,
    *,
    names: Sequence[str] = NAMES,
    features: bool = True,
    **more: Any,
) -> "pa.Table":
    """As datasets writes it: struct<bytes, path>, int64, and the names of the classes in the metadata."""
    struct = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    values = [{"bytes": image, "path": f"{i}.jpg"} for i, image in enumerate(images)]
    found = pa.table({"image": pa.array(values, struct), "label": pa.array(labels, pa.int64()), **more})
    about = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": list(names)}}
    return found.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": about}})} if features else {})


CHUNKS = {"min_chunk_size": 16 * 1024, "max_chunk_size": 64 * 1024, "norm_level": 0}
UNCOMPRESSED: dict[str, dict[str, Any]] = {
    "dictionary": {"compression": "none", "row_group_size": 100},
    "plain": {"compression": "none", "use_dictionary": False, "data_page_size": 40_000},
    "version 2": {"compression": "none", "use_dictionary": False, "data_page_version": "2.0", "data_page_size": 40_000},
    "version 2, dictionary": {"compression": "none", "data_page_version": "2.0"},
    "dictionary, then plain": {"compression": "none", "dictionary_pagesize_limit": 50_000, "write_batch_size": 20},
    "datasets 4.6": {
        "compression": {"image.bytes": "none", "image.path": "snappy", "label": "snappy"},
        "use_dictionary": ["label", "image.path"],
        "use_content_defined_chunking": CHUNKS,
        "write_page_index": True,
        "row_group_size": 120,
    },
}


def write_set(root: Path, folder: Path, *, num_files: int = 2, **options: Any) -> Path:
    """The images of a folder for each class, in its order, as data/train-*.parquet and data/validation-*.parquet."""
    (root / "data").mkdir(parents=True)
    for split, name in (("train", "train"), ("val", "validation")):
        images = sorted(folder.glob(f"{split}/*/*"))
        classes = sorted({image.parent.name for image in images})
        for i in range(num_files):
            part = images[len(images) * i // num_files : len(images) * (i + 1) // num_files]
            labels = [classes.index(image.parent.name) for image in part]
            made = table([image.read_bytes() for image in part], labels, names=classes)
            pq.write_table(made, root / f"data/{name}-{i:05d}-of-{num_files:05d}.parquet", **options)
    return root
