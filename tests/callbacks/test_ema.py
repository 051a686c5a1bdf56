"""The average is Lightning's own, but lies on the training device and costs no wait for it."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EMAWeightAveraging

from imagenet_opt.callbacks.ema import Ema
from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.telemetry.host_syncs import HostSyncs
from tests.callbacks.conftest import Plain, Project


class WaitsOf(Callback):
    """Counts what makes the host wait in the `on_train_batch_end` of another callback."""

    def __init__(self, callback: Callback) -> None:
        self.waits = HostSyncs()
        self.calls = 0
        hook = callback.on_train_batch_end

        def counted(*args: Any) -> None:
            self.calls += 1
            with self.waits:
                hook(*args)

        callback.on_train_batch_end = counted  # type: ignore[method-assign]


@pytest.mark.parametrize("every", [1, 3])
def test_the_average_is_that_of_lightnings_class(project: Project, every: int) -> None:
    ours = project.fit(Ema(decay=0.7, update_every_n_steps=every), module=Plain())
    theirs = Project().fit(EMAWeightAveraging(decay=0.7, update_every_n_steps=every), module=Plain())
    for (name, average), expected in zip(ours.state_dict().items(), theirs.state_dict().values(), strict=True):
        if average.is_floating_point():
            torch.testing.assert_close(average, expected, msg=name)
    assert int(ours.net[1].num_batches_tracked) == (20 if every == 1 else 19)  # copied at the last update


def test_the_average_moves_to_the_training_device() -> None:
    ema, module = Ema(), Plain()
    trainer: Any = SimpleNamespace(strategy=SimpleNamespace(root_device=torch.device("meta")))
    ema.setup(trainer, module, "fit")
    ema.on_fit_start(trainer, module)
    assert ema._average_model is not None
    assert {tensor.device.type for tensor in ema._average_model.module.state_dict().values()} == {"meta"}
    assert ema._average_model.n_averaged.device.type == "cpu"


@pytest.mark.parametrize(("averaging", "waits"), [(Ema, False), (EMAWeightAveraging, True)])
def test_an_update_does_not_wait_for_the_device_as_lightnings_does(
    project: Project, averaging: type[Ema | EMAWeightAveraging], waits: bool
) -> None:
    average = averaging(decay=0.5)
    counted = WaitsOf(average)
    project.fit(average, counted)
    assert counted.calls == 20
    assert bool(counted.waits.counts) is waits


def test_after_its_half_life_a_weight_counts_half() -> None:
    assert Ema(decay=None, half_life_steps=100, update_every_n_steps=20).decay == pytest.approx(2**-0.2)
    with pytest.raises(ConfigError, match="set one of decay and half_life_steps"):
        Ema(decay=0.9, half_life_steps=100)


@pytest.mark.parametrize(("option", "value"), [("decay", 1.0), ("decay", -0.1), ("update_every_n_steps", 0)])
def test_values_out_of_range_are_refused_with_their_key(option: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"callbacks.ema.{option}={value}"):
        Ema(**{option: value})
