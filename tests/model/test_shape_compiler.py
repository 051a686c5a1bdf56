"""Graphs of several sizes of images on a device that holds one. No test needs a GPU."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from imagenet_opt.model.shape_compiler import CodePlace, ShapeCompiler


class Graph(nn.Module):
    """Replays nothing; `held` has the graphs that are alive."""

    held: list[int] = []  # noqa: RUF012

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side
        self.held.append(side)

    def __del__(self) -> None:
        self.held.remove(self.side)


def capture_if_alone(module: nn.Module, images: tuple[Tensor]) -> nn.Module:
    if Graph.held:
        raise torch.OutOfMemoryError("CUDA out of memory.")
    return Graph(images[0].shape[-1])


@pytest.mark.parametrize("on_graph_failure", ["eager", "stop"])
def test_a_size_that_does_not_fit_beside_the_graph_of_another_replaces_it(
    monkeypatch: pytest.MonkeyPatch, on_graph_failure: Any
) -> None:
    monkeypatch.setattr("imagenet_opt.model.shape_compiler.capture_on_gpu", lambda: capture_if_alone)
    compiler = ShapeCompiler(
        compile=False,
        compile_mode="default",
        fullgraph=False,
        cuda_graph=True,
        on_failure="eager",
        on_graph_failure=on_graph_failure,
    )
    code = CodePlace(None, Path("unused"), writes=False)
    compiler.begin(nn.Conv2d(3, 4, 1), torch.device("cpu"), lambda **_: nullcontext(), lambda text: None, code)
    held = []
    for side in (160, 160, 192, 192, 160, 192, 224):
        compiler.prepare([torch.zeros(2, 3, side, side)])
        held.append(list(Graph.held))
    assert held == [[160], [160], [192], [192], [192], [192], [224]]  # growing images never shrink again
    compiler.end()
    assert Graph.held == []
