import logging
import threading
from collections.abc import Iterator

import pytest
from lightning.pytorch.demos.boring_classes import BoringModel

from callbacks.gpu_utilization import GpuUtilization
from imagenet_opt.errors import ConfigError
from tests.conftest import quiet_trainer


@pytest.fixture
def said() -> Iterator[list[str]]:
    """What Lightning prints."""
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("lightning.pytorch").addHandler(handler)
    yield messages
    logging.getLogger("lightning.pytorch").removeHandler(handler)


@pytest.mark.filterwarnings(
    "ignore:.*does not have many workers", "ignore:GPU available but not used", "ignore:.*LeafSpec.*:FutureWarning"
)
def test_without_cuda_it_says_so_once_and_logs_nothing(said: list[str]) -> None:
    callback = GpuUtilization(interval_seconds=0.001)
    trainer = quiet_trainer(max_steps=4, log_every_n_steps=1, limit_val_batches=0, callbacks=[callback])
    trainer.fit(BoringModel())
    about_gpu = [message for message in said if "gpu_utilization" in message]
    assert about_gpu == ["gpu_utilization: training runs on cpu, not on CUDA; nothing is logged."]
    assert callback.summary() == {}
    assert not [key for key in trainer.logged_metrics if key.startswith("gpu/")]
    assert "gpu-sampler" not in [thread.name for thread in threading.enumerate()]


def test_a_negative_interval_is_refused_by_its_key() -> None:
    with pytest.raises(ConfigError, match=r"callbacks\.gpu_utilization\.interval_seconds"):
        GpuUtilization(interval_seconds=-1.0)
