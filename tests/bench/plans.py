"""Small benchmarks."""

from pathlib import Path
from typing import Any

from imagenet_opt.bench.plan import Plan, make_plan
from imagenet_opt.data.options import LoaderOptions
from tests.conftest import loading

HOW = loading(num_workers=1)


def plan_of(index: Any, loading: LoaderOptions = HOW, **changes: Any) -> Plan:
    options: dict[str, Any] = {"against": (), "num_batches": 4, "has_gpu": False, "cache": Path("/nowhere")}
    return make_plan(index, loading, **(options | changes))
