"""Processes of the server do not run the caller's script again, and start no CUDA."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from imagenet_opt.processes import FOR_CALLS, FOR_WORKERS

CALLS = """
print("once", flush=True)
from imagenet_opt.processes import start_server
start_server(())
from imagenet_opt.probe.isolated import call_isolated as call
print(call("os.path.basename", "folder/name"))
print(call("os.getenv", "OMP_NUM_THREADS", environment={"OMP_NUM_THREADS": "3"}))
"""


def started(code: str, folder: Path) -> "subprocess.Popen[str]":
    (folder / "script.py").write_text(f"import os\n{code}")
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen([sys.executable, str(folder / "script.py")], env=env, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_calls_do_not_run_the_script_again_and_have_their_variables(tmp_path: Path) -> None:
    with started(CALLS, tmp_path) as program:
        assert program.communicate(timeout=600)[0] == "once\nname\n3\n"


@pytest.mark.slow
def test_the_imports_of_the_server_exist_and_start_no_cuda(tmp_path: Path) -> None:
    assert all(find_spec(name) for name in FOR_CALLS + FOR_WORKERS)
    code = f"""
import importlib, torch
def started(*_): raise SystemExit("CUDA was asked for")
torch._C._cuda_init = torch._C._cuda_getDeviceCount = started
for name in {FOR_CALLS + FOR_WORKERS!r}: importlib.import_module(name)
"""
    with started(code, tmp_path) as program:
        assert program.wait(600) == 0
