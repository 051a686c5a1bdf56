"""What a machine is made of, against what the system's own tools say."""

from pathlib import Path

import psutil

from imagenet_opt.measure.hardware import hardware


def test_memory_and_storage_are_named(tmp_path: Path) -> None:
    found = hardware(str(tmp_path), on_gpu=False)
    assert found["memory"] == f"{round(psutil.virtual_memory().total / 2**30)} GiB"
    assert found["storage"].startswith("/") and "(" in found["storage"]
    assert found.keys() == {"memory", "storage"}
