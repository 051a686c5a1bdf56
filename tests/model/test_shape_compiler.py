"""Networks are compiled in the precision of training."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

from imagenet_opt.model.shape_compiler import ShapeCompiler


class NeedsBfloat16(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(12, 3)

    def forward(self, images: Tensor) -> Tensor:
        logits = self.head(images.flatten(1))
        if logits.dtype is not torch.bfloat16:
            raise TypeError("called outside the precision context of training")
        return logits


@contextmanager
def training(*, compiling: bool) -> Iterator[None]:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("compile_cache")
def test_a_network_is_compiled_with_autocast_also_for_a_graph() -> None:
    failures = {"on_failure": "stop", "on_graph_failure": "stop"}
    compiler = ShapeCompiler(compile=True, compile_mode="default", fullgraph=False, cuda_graph=True, **failures)
    said: list[str] = []
    compiler.begin(NeedsBfloat16(), torch.device("cpu"), training, said.append)
    compiler.shrink([torch.zeros(2, 3, 2, 2)])  # compiles, and captures nothing yet
    compiler.end()
    assert "compiled for images of (2, 3, 2, 2)" in said[-1]
