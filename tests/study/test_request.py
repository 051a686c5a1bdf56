"""A mistake in a study's file is reported with its key, and in words of this project."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from imagenet_opt.errors import ConfigError
from imagenet_opt.study.kinds.queue import Options as Queue
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
        (
            Read,
            "read",
            {"xyz": 1},
            "there is no key xyz; expected title, kind, num_workers, reads_in_flight, batch_size, state",
        ),
        (Read, "read", {"state": ["hot"]}, "state=hot must be 'cold' or 'warm'"),
        (Read, "read", {"num_workers": 4}, "num_workers=4 must be a list"),
        (Read, "read", {"num_workers": []}, "num_workers=[] must be a list of 1 or more"),
        (Torchscript, "torchscript", {"a": 1}, "there is no key a; expected title, kind"),
        (Scaling, "scaling", {"processes": ["a"]}, "processes=a must be a whole number"),
        (Scaling, "scaling", {"processes": [0]}, "processes=0 must be greater than 0"),
        (
            Scaling,
            "scaling",
            {"processes": [2]},
            "processes: [2] must hold 1, with which the other numbers are compared",
        ),
        (
            Scaling,
            "scaling",
            {"processes": [1, 2, 2]},
            "processes: [1, 2, 2] must hold 1, with which the other numbers",
        ),
        (Queue, "queue", {"load_over_compute": "much"}, "load_over_compute=much must be a number"),
        (StepsFile, "ladder", steps(start=3), "start=3 must be a list or 'plain'"),
        (StepsFile, "ladder", steps(order="b"), "order=b must be 'cumulative', 'alone' or 'leave_one_out'"),
        (StepsFile, "ladder", steps("a"), "steps=a must be keys with their values"),
        (StepsFile, "ladder", steps({"name": "a", "override": []}), "step 'a': there is no key override; did you mean"),
        (StepsFile, "ladder", steps({"name": "a"}, {"needs": "gpu"}), "step 2: name must be given"),
        (StepsFile, "ladder", steps({"name": "a", "overrides": "b"}), "step 'a': overrides=b must be a list"),
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
        ("", "title and kind must be given (kind: one of steps, scaling, queue"),
        ("title: A trial\nknd: steps\n", "there is no key knd; did you mean kind?"),
        ("title: A trial\nkind: nosuch\n", "kind=nosuch must be one of steps, scaling"),
        ("- a\n", "['a'] must be keys with their values"),
        ("title: [a]\nkind: steps\n", "title=['a'] must be a text"),
        ("title: [unclosed\n", "the file cannot be read: "),
    ],
)
def test_a_file_that_is_no_study_is_reported(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as raised:
        read_study(str(file))
    assert str(raised.value).startswith(f"study={file}: {message}")


def test_a_misspelt_key_is_reported_before_a_missing_key(tmp_path: Path) -> None:
    request = small_request("ladder", tmp_path)
    del request.options["order"]
    with pytest.raises(ConfigError, match=r"order must be given \(order: one of cumulative, alone, leave_one_out\)$"):
        checked_options(StepsFile, request)
    request.options["ordr"] = "alone"
    with pytest.raises(ConfigError, match=r"there is no key ordr; did you mean order\?$"):
        checked_options(StepsFile, request)
