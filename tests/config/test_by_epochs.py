"""Values of a recipe that depend on the length of the run."""

from pathlib import Path

import pytest

from tests.config.configs import composed


@pytest.mark.parametrize(
    ("epochs", "mode", "cutmix_alpha", "drop_path_rate"),
    [(1, "off", 0.0, 0.0), (5, "off", 0.0, 0.0), (20, "on", 0.0, 0.0), (79, "on", 0.0, 0.0), (200, "on", 1.0, 0.1)],
)
def test_longer_runs_are_regularised_more(
    epochs: int, mode: str, cutmix_alpha: float, drop_path_rate: float, tmp_path: Path
) -> None:
    config = composed(tmp_path, "experiment=imagenette", f"trainer.max_epochs={epochs}")
    mixing = config.callbacks.mixing
    assert (mixing.mode, mixing.cutmix_alpha) == (mode, cutmix_alpha)
    assert config.model.drop_path_rate == drop_path_rate


def test_a_run_of_steps_counts_as_short(tmp_path: Path) -> None:
    words = ("experiment=imagenette", "trainer.max_epochs=-1", "trainer.max_steps=10")
    assert composed(tmp_path, *words).callbacks.mixing.mode == "off"
