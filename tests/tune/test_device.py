"""Which formats and ways to compile are tried."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from imagenet_opt.callbacks.acceleration import Acceleration
from imagenet_opt.tune.device import AS_IT_IS, _formats, _ways
from tests.config.configs import composed

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_only_what_differs_on_the_device_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    eager = tuple(f"callbacks.acceleration.{key}=false" for key in ("compile", "cuda_graph"))
    config = composed(tmp_path, "data.root=/data", *eager)
    assert list(dict(_formats(config, CPU))) == [AS_IT_IS, "mixed, channels first"], "mixed is float32 there"
    assert list(dict(_ways(config, CPU))) == [AS_IT_IS, "default"]
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    formats = dict(_formats(config, CUDA))
    assert len(formats) == 4 and "callbacks.acceleration.tf32=true" in formats["32-true with tf32, channels first"]
    for unfit in ("trainer.devices=2", "trainer.num_nodes=2", "callbacks.acceleration.gradient_checkpointing=true"):
        tried = list(dict(_ways(composed(tmp_path, "data.root=/data", *eager, unfit), CUDA)))
        assert tried == [AS_IT_IS, "default", "reduce-overhead", "max-autotune"]


ALL_WAYS = {
    "off": (False, None, False),
    "a CUDA graph": (False, None, True),
    "default": (True, "default", False),
    "compile and a CUDA graph": (True, "default", True),
    "reduce-overhead": (True, "reduce-overhead", False),
    "max-autotune": (True, "max-autotune", False),
}


@pytest.mark.parametrize("now", ALL_WAYS)
def test_every_way_to_compile_for_a_gpu_is_tried_but_the_one_that_is_configured(now: str, tmp_path: Path) -> None:
    def switches(changes: Sequence[str]) -> dict[str, Any]:
        words = dict(word.removeprefix("callbacks.acceleration.").split("=") for word in changes)
        return {name: yaml.safe_load(word) for name, word in words.items()}

    compiled, mode, graph = ALL_WAYS[now]
    config = composed(tmp_path, "data.root=/data")
    config.callbacks.acceleration.update(compile=compiled, compile_mode=mode or "default", cuda_graph=graph)
    ways = dict(_ways(config, CUDA))
    assert ways.pop(AS_IT_IS) == ()
    assert list(ways) == [name for name in ALL_WAYS if name != now]
    for name, changes in ways.items():
        compiled, mode, graph = ALL_WAYS[name]
        assert switches(changes) == {"compile": compiled, "cuda_graph": graph} | (
            {"compile_mode": mode} if mode else {}
        )
        Acceleration(**switches(changes))
