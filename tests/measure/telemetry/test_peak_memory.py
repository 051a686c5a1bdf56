import subprocess
import sys

import psutil
import torch

from imagenet_opt.machine import GIB
from imagenet_opt.measure.telemetry.peak_memory import peak_gib


def test_released_memory_counts() -> None:
    held = torch.ones(2**26)
    most = psutil.Process().memory_info().rss / GIB
    del held
    assert peak_gib(torch.device("cpu")) > 0.99 * most > 0.25


def test_earlier_programs_of_the_process_do_not_count() -> None:
    """A program uses a GiB, then executes Python again in the same process."""
    asks = (
        "import sys, types; sys.modules['torch'] = types.SimpleNamespace(device=object)\n"  # its import is slow
        "from imagenet_opt.measure.telemetry.peak_memory import peak_gib\n"
        "print(peak_gib(types.SimpleNamespace(type='cpu')))"
    )
    big = f"import os, sys; bytearray(b'1') * 2**30; os.execv(sys.executable, [sys.executable, '-c', {asks!r}])"
    answer = subprocess.run([sys.executable, "-c", big], capture_output=True, check=True, text=True).stdout
    assert 0 < float(answer) < 1
