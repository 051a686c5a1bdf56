"""A mistake in a study's file is reported with its key."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from imagenet_opt.errors import ConfigError
from imagenet_opt.study.kinds.read import Options as Read
from imagenet_opt.study.kinds.scaling import Scaling
from imagenet_opt.study.kinds.torchscript import Options as Torchscript
from imagenet_opt.study.plan import StepsFile
from imagenet_opt.study.request import checked_options, read_study
from tests.study.studies import small_request


def steps(*steps: Any, **keys: Any) -> dict[str, Any]:
    return {"order": "alone", "start": "plain", "steps": list(steps) or [{"name": "a"}]} | keys


@pytest.mark.parametrize(
    ("model", "study", "options", "message"),
    [
        (Read, "read", {"num_worker": [1]}, "there is no key num_worker; did you mean num_workers?"),
        (Read, "read", {"state": ["hot"]}, "state.0=hot: "),
        (Torchscript, "torchscript", {"a": 1}, "there is no key a; expected "),
        (Scaling, "scaling", {"processes": ["a"]}, "processes.0=a: "),
        (Scaling, "scaling", {"processes": [2]}, "processes=[2]: "),
        (StepsFile, "ladder", steps(order="b"), "order=b: "),
        (StepsFile, "ladder", steps("a"), "steps.0=a: "),
        (StepsFile, "ladder", steps({"name": "a", "override": []}), "there is no key steps.0.override; did you mean"),
        (StepsFile, "ladder", steps({"name": "a"}, {"needs": "gpu"}), "steps.1.name: "),
        (StepsFile, "ladder", {"order": None, "ordr": "alone"}, "there is no key ordr; did you mean order?"),
    ],
)
def test_the_first_mistake_is_reported(
    model: type[BaseModel], study: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        checked_options(model, small_request(study, Path(), **options))
    assert str(raised.value).startswith(f"study={study}: {message}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "title: "),
        ("title: A trial\nknd: steps\n", "kind: "),
        ("title: A trial\nkind: nosuch\n", "kind=nosuch must be one of steps, scaling"),
        ("- a\n", "the file="),
        ("title: [unclosed\n", ""),
    ],
)
def test_a_file_that_is_no_study_is_reported(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as raised:
        read_study(str(file))
    assert str(raised.value).startswith(f"study={file}: {message}")
