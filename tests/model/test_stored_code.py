"""A restart finds compiled code, and runs none that another user may have written."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from tests.callbacks.conftest import Network, switched
from tests.model.conftest import batches, fit

CACHE = "TORCHINDUCTOR_CACHE_DIR"
Start = Callable[[], list[str]]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[Start]:
    """Starts a compiled run in the folder of the test, and returns what it says of compiled code."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(CACHE, default_cache_dir())  # as torch may leave it
    caplog.set_level("INFO")

    def once() -> list[str]:
        torch.compiler.reset()
        caplog.clear()
        net = Network(nn.Flatten(), nn.Linear(48, 3, bias=False))  # products alone need no C++ compiler
        fit(net, batches(1), None, switched(compile=True, stored_code=True), folder=tmp_path, max_epochs=1)
        return [line for line in caplog.messages if "compiled code" in line]

    yield once
    torch.compiler.reset()


@pytest.mark.slow
def test_a_restart_on_another_machine_finds_the_stored_code(start: Start, tmp_path: Path, monkeypatch) -> None:
    file, found = tmp_path / "compiled_code.bin", list[tuple[int, int]]()
    for machine in ("here", "there"):
        counters.clear()
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / machine))
        monkeypatch.delenv(CACHE)
        assert start() == []
        found.append((counters["inductor"]["fxgraph_cache_hit"], counters["inductor"]["fxgraph_cache_miss"]))
    (hits, misses), (hits_there, misses_there) = found
    assert hits == 0 < misses == hits_there and misses_there == 0
    assert (tmp_path / "here/imagenet_opt/compiled").stat().st_mode & 0o777 == 0o700
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_bytes(file.read_bytes()[:-100])
    assert [f"the compiled code in {file} is not used: checksum is" in line for line in start()] == [True]


@pytest.fixture
def without_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_network = nn.Module.compile

    def eager(net: nn.Module, *, mode: str, **options: Any) -> None:
        compile_network(net, backend="eager", **options)

    monkeypatch.setattr(nn.Module, "compile", eager)


@pytest.mark.usefixtures("without_inductor")
@pytest.mark.parametrize(
    ("mode", "reason"), [(0o600, f"torch is {torch.__version__}, in the file 1.13.0"), (0o660, "is not yours alone")]
)
def test_code_that_others_can_write_or_of_another_torch_is_passed_over(
    mode: int, reason: str, start: Start, tmp_path: Path
) -> None:
    file = tmp_path / "compiled_code.bin"
    file.write_bytes(json.dumps({"torch": "1.13.0"}).encode() + b"\n")
    file.chmod(mode)
    (line,) = start()
    assert str(file) in line and reason in line


@pytest.mark.usefixtures("without_inductor")
@pytest.mark.parametrize("others", ["a link", "a file"])
def test_compiled_code_is_kept_in_no_folder_that_others_made(
    others: str, start: Start, tmp_path: Path, monkeypatch
) -> None:
    folder = tmp_path / "imagenet_opt/compiled"
    folder.parent.mkdir()
    folder.symlink_to(tmp_path) if others == "a link" else folder.touch()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv(CACHE)
    (line,) = start()
    assert str(folder) in line
    chosen = Path(os.environ[CACHE])
    assert chosen not in (folder, Path(default_cache_dir())) and chosen.stat().st_mode & 0o777 == 0o700


@pytest.mark.usefixtures("without_inductor")
def test_torchs_guessable_folder_is_replaced_and_one_that_the_user_set_is_not(
    start: Start, tmp_path: Path, monkeypatch
) -> None:
    assert start() == []
    assert os.environ[CACHE] == str(tmp_path / "imagenet_opt/compiled")
    monkeypatch.setenv(CACHE, str(tmp_path / "chosen"))
    assert start() == []
    assert os.environ[CACHE] == str(tmp_path / "chosen")
