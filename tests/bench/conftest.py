"""Small benchmarks."""

from pathlib import Path
from typing import Any

import pytest

from imagenet_opt.bench.job import WORKER, Job
from imagenet_opt.bench.plan import Plan, make_plan
from imagenet_opt.data.index.folder_index import FileIndex, open_split
from imagenet_opt.data.options import LoaderOptions
from tests.conftest import loading

HOW = loading(num_workers=1)


def plan_of(index: Any, loading: LoaderOptions = HOW, **changes: Any) -> Plan:
    options: dict[str, Any] = {"against": (), "num_batches": 4, "has_gpu": False, "cache": Path("/nowhere")}
    return make_plan(index, loading, **(options | changes))


@pytest.fixture
def index(images_root: Path, tmp_path: Path) -> FileIndex:
    return open_split(images_root, "train", tmp_path)


@pytest.fixture
def job(index: FileIndex) -> Job:
    turn = {"num_workers": 0, "prefetch_factor": 2, "num_warmup": 2, "num_batches": 3}
    return Job(side=WORKER, index=index, loading=HOW, passes=2, **turn)
