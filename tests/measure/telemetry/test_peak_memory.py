import psutil
import torch

from imagenet_opt.machine import GIB
from imagenet_opt.measure.telemetry.peak_memory import peak_gib


def test_released_memory_counts() -> None:
    held = torch.ones(2**26)
    most = psutil.Process().memory_info().rss / GIB
    del held
    assert peak_gib(torch.device("cpu")) > 0.99 * most > 0.25
