"""Completion of the command line, and the form of its values."""

from pathlib import Path

import pytest

from imagenet_opt.config.compose import composed
from imagenet_opt.config.overrides import complete
from tests import conftest


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", "experiment=demo"),
        ("data=demo -m seed=1,2", "-m experiment=demo data=demo seed=1,2"),
        ("data.root=/d --cfg job", "data=folder data.root=/d --cfg job"),
        ("+experiment=baseline", "experiment=baseline"),
        ("data=demo experiment=[baseline,mine]", "data=demo experiment=[baseline,mine]"),
        ("--help logger=null", "--help logger=[]"),
        ("+rehearse=a10g data.root=/d experiment=mine", "data=folder rehearse=a10g data.root=/d experiment=mine"),
        ("rehearse=null experiment=null", "~rehearse ~experiment"),
        ("data.root=~/d", f"data=folder data.root={Path.home()}/d"),
    ],
)
def test_command_line_is_completed_once(words: str, expected: str) -> None:
    assert complete(words.split()) == expected.split()
    assert complete(expected.split()) == expected.split()


def test_a_value_gets_the_form_of_the_default() -> None:
    config = composed(("optimizer.nesterov=off", "trainer.max_steps=1e3", 'optimizer.lr="0.5"'))
    assert (config.optimizer.nesterov, config.trainer.max_steps, config.optimizer.lr) == (False, 1000, 0.5)


def test_an_optional_callback_is_off_until_a_key_has_a_value() -> None:
    def callbacks(*words: str) -> set[str]:
        return set(conftest.composed(*words).callbacks) & {"ema", "resolution_schedule", "early_stop", "profiler"}

    assert callbacks() == callbacks("callbacks.early_stop.stopping_threshold=null") == set()
    assert callbacks("callbacks=[mixing,ema]", "callbacks.ema.decay=0.9") == {"ema"}
    assert callbacks("callbacks.early_stop.patience=5", "callbacks.ema.decay=0.9") == {"early_stop", "ema"}
    assert callbacks("experiment=rn50_mild") == {"ema", "resolution_schedule"}
    assert callbacks("experiment=rn50_mild", "callbacks.ema.decay=null") == {"resolution_schedule"}
