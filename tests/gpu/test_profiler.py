"""The trace of the profiler has the kernels of a GPU."""

import gzip
import json
from pathlib import Path

from imagenet_opt.callbacks.profiler import Profiler
from tests.gpu.test_training import fit


def test_the_profilers_trace_has_kernels(images_root: Path, tmp_path: Path) -> None:
    fit(images_root, tmp_path, Profiler(folder=tmp_path, start_step=3, num_steps=2))
    with gzip.open(tmp_path / "profile/step_5.json.gz", "rt") as trace:
        assert any(event.get("cat") == "kernel" for event in json.load(trace)["traceEvents"])
