"""A fit of a project that has never heard of this one ends with a diagnosis of its loop."""

import json
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from imagenet_opt.callbacks.diagnose import Diagnose
from imagenet_opt.errors import ConfigError
from tests.callbacks.conftest import Project, Stream


@pytest.mark.slow
@pytest.mark.parametrize("data", [None, Stream()], ids=["map", "stream"])
def test_a_fit_ends_with_a_diagnosis(
    project: Project, data: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "diagnosis.json"
    with pytest.raises(SystemExit) as ended:
        project.fit(Diagnose(seconds=5, file=file), data=data, max_epochs=1000, num_sanity_val_steps=2)
    assert ended.value.code == 0
    written = json.loads(file.read_text())
    assert written["measured"]["kept"] and not written["measured"]["ended"]
    assert written["verdict"][:12] in capsys.readouterr().out
    assert DataLoader.__iter__.__module__ == DataLoader.__module__


def test_a_fit_that_ends_too_early_says_so(project: Project) -> None:
    with pytest.raises(ConfigError, match="seconds=60"):
        project.fit(Diagnose(seconds=60), max_steps=3, max_epochs=-1)
