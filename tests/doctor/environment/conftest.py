from collections.abc import Callable
from typing import Any

import pytest

from imagenet_opt.doctor.environment.setup import Setup
from imagenet_opt.doctor.remedies import DataPlace


@pytest.fixture
def setup() -> Callable[..., Setup]:
    """ImageNet on 8 workers, with what is said otherwise."""

    def changed(**fields: Any) -> Setup:
        usual: dict[str, Any] = {
            "data": DataPlace("/fsx/imagenet"),
            "folder": "/fsx/imagenet/train",
            "files": (),
            "data_bytes": 140 * 2**30,
            "num_workers": 8,
            "fitted_workers": 8,
            "prefetch_factor": 4,
            "fitted_prefetch": 4,
            "batch_bytes": 64 * 2**20,
            "batch_size": 256,
            "precision": "bf16-mixed",
            "widths": (64, 256, 1000),
            "num_classes": 1000,
            "channels_last": True,
            "cuda_index": 0,
        }
        return Setup(**usual | fields)

    return changed
