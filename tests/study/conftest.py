"""Processes of a study that return results at once."""

import pytest

from imagenet_opt.study import turn
from tests.study.studies import Processes


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Processes:
    processes = Processes()
    monkeypatch.setattr(turn, "call_isolated", processes.call)
    return processes
