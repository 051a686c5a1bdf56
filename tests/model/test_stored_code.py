"""A restart finds compiled code, and runs none that another user may have written."""

import json
import os
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from imagenet_opt.model.shape_compiler import CodePlace, ShapeCompiler
from imagenet_opt.model.stored_code import load_code, use_private_cache

CPU = torch.device("cpu")


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
def test_a_restart_on_another_machine_finds_the_stored_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, said, found = tmp_path / "compiled_code.bin", list[str](), list[tuple[int, int]]()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")  # restored after the test
    switches: Any = {"on_failure": "stop", "on_graph_failure": "stop", "fullgraph": False, "cuda_graph": False}
    for machine in ("here", "there"):
        counters.clear()
        os.environ.pop("TORCHINDUCTOR_CACHE_DIR", None)
        compiler = ShapeCompiler(compile=True, compile_mode="default", **switches)
        code = CodePlace(file, tmp_path / machine, writes=True)
        net = nn.Sequential(nn.Flatten(), nn.Linear(12, 3, bias=False))  # products alone need no C++ compiler
        compiler.begin(net, CPU, lambda *, compiling: nullcontext(), said.append, code)
        compiler.prepare([torch.zeros(2, 3, 2, 2)])
        found.append((counters["inductor"]["fxgraph_cache_hit"], counters["inductor"]["fxgraph_cache_miss"]))
        torch.compiler.reset()
    (hits, misses), (hits_there, misses_there) = found
    assert hits == 0 < misses == hits_there and misses_there == 0
    assert (tmp_path / "here").stat().st_mode & 0o777 == 0o700 and file.stat().st_mode & 0o777 == 0o600
    said.clear()
    file.write_bytes(file.read_bytes()[:-100])
    load_code(file, CPU, said.append)
    assert f"the compiled code in {file} is not used: checksum is" in said[0]


def stored(file: Path, **about: str) -> Path:
    file.write_bytes(json.dumps(about).encode() + b"\n")
    file.chmod(0o600)
    return file


def test_code_that_others_can_write_or_of_another_torch_is_passed_over_with_one_line(tmp_path: Path) -> None:
    said: list[str] = []
    load_code(tmp_path / "absent", CPU, said.append)
    assert said == []
    load_code(stored(tmp_path / "old", torch="1.13.0"), CPU, said.append)
    assert f"{tmp_path}/old is not used: torch is {torch.__version__}, in the file 1.13.0" in said.pop() and not said
    stored(tmp_path / "shared").chmod(0o660)
    load_code(tmp_path / "shared", CPU, said.append)
    assert "is not yours alone to write" in said.pop() and said == []


@pytest.mark.parametrize("others", ["a link", "a file"])
def test_compiled_code_is_kept_in_no_folder_that_others_made(tmp_path: Path, monkeypatch, others: str) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    folder, said = tmp_path / "compiled", list[str]()
    folder.symlink_to(tmp_path) if others == "a link" else folder.touch()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    use_private_cache(folder, said.append)
    assert len(said) == 1 and str(folder) in said[0]
    chosen = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    assert chosen not in (folder, Path(default_cache_dir())) and chosen.stat().st_mode & 0o777 == 0o700


def test_torchs_guessable_folder_is_replaced_and_one_that_the_user_set_is_not(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", default_cache_dir())
    use_private_cache(tmp_path / "own", print)
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "own")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "chosen"))
    use_private_cache(tmp_path / "own", print)
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "chosen")
