"""A study of steps before its measurements."""

import os
from pathlib import Path
from typing import Any

import pytest

from imagenet_opt import machine
from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.storage.page_cache import Residency
from imagenet_opt.probe.samples import Samples
from imagenet_opt.study.file import Request
from imagenet_opt.study.plan import Study
from imagenet_opt.study.steps import begin
from tests.study.studies import TINY, Words, small_request, steps_study

FUSED, FREED = "optimizer.fused=true", "model.set_to_none=true"
STEPS: list[dict[str, Any]] = [{"name": "fused", "overrides": [FUSED]}, {"name": "freed", "overrides": [FREED]}]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    cache = tmp_path_factory.mktemp("demo")
    own = ("trainer.accelerator=cpu", f"data.cache_dir={cache}", "data.num_train=64", "data.num_val=10")
    return (*TINY, *own)


def begun(request: Request) -> Study:
    return begin(request.file, request)[0]


@pytest.mark.parametrize(("share", "available", "cold"), [(1.0, 0, False), (0.0, 10**12, False), (0.0, 0, True)])
def test_files_are_read_from_storage_only_if_memory_has_no_room_for_them(
    share: float, available: int, cold: bool, tmp_path: Path, small: Words, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Samples, "residency", lambda self: Residency(share, "mincore"))
    monkeypatch.setattr(Samples, "warm", lambda self, seconds: None)
    monkeypatch.setattr(machine, "available_memory", lambda: available)
    assert begun(small_request("ladder", tmp_path, *small, steps=STEPS)).cold == cold


def test_apply_refuses_what_it_could_not_write(tmp_path: Path, own_conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for word in ("optimizer=lamb", "~callbacks.mixing"):
        with pytest.raises(ConfigError, match="--apply: "):
            begun(steps_study(tmp_path, [{"name": "a", "overrides": [word]}], apply=True).request)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "experiment")
    with pytest.raises(ConfigError, match="experiment cannot be written"):
        begun(steps_study(tmp_path, STEPS, apply=True).request)
