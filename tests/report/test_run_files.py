"""Step times from a timeline or from the doctor."""

import shlex
from pathlib import Path

import numpy as np
import pytest

from imagenet_opt.report.run_files import CONFIG, OVERRIDES, Record, read_run
from tests.report.recordings import recorded


def test_steps_are_timed_from_end_to_end_without_interruptions(tmp_path: Path) -> None:
    steps = [(end - 0.5, end, "step") for end in (1.0, 2.0, 3.5, 14.0, 15.0, 815.0, 816.0)]
    others = [(0.0, 3.5, "epoch"), (3.5, 13.0, "validation")]
    times = np.concatenate([np.arange(0, 15.5, 0.1), np.arange(814, 816, 0.1)])
    record = Record("run", timeline=recorded(tmp_path, times, [*steps, *others]))
    assert record.steps[0] == pytest.approx((1, 1.5, 1, 1))


def test_a_strangers_run_folder_gives_a_command_of_words_and_does_not_fill_the_memory(tmp_path: Path) -> None:
    word = "data.root=/data/$(touch${IFS}COPIED) 'a'"
    levels = [f"a{i + 1}: &a{i + 1} [*a{i}, *a{i}]" for i in range(40)]
    written = {
        OVERRIDES: f'- "{word}"\n',
        CONFIG: "\n".join(["a0: &a0 [1, 1]", *levels]),
        Path("record.json"): '{"numbers": {"a": 1}}',
    }
    for name, text in written.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    record = read_run(tmp_path)
    assert shlex.split(record.command) == ["python", "train.py", word]
    assert "config.yaml cannot be read" in record.absent["config"]
