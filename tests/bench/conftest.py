"""A turn of a small benchmark."""

from pathlib import Path

import pytest

from imagenet_opt.bench.job import WORKER, Job
from imagenet_opt.data.index.folder_index import FileIndex, open_split
from tests.bench.plans import HOW


@pytest.fixture
def index(images_root: Path, tmp_path: Path) -> FileIndex:
    return open_split(images_root, "train", tmp_path)


@pytest.fixture
def job(index: FileIndex) -> Job:
    return Job(
        side=WORKER,
        index=index,
        loading=HOW,
        passes=2,
        num_workers=0,
        prefetch_factor=2,
        num_warmup=2,
        num_batches=3,
    )
