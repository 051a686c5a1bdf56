"""Forked programs behave as programs that a new interpreter starts."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from imagenet_opt.fork_server import IMPORTED, ForkedProgram, Program, start

SHOW = """
import atexit, json, multiprocessing, os, sys, __main__
atexit.register(lambda: print("at exit"))
import beside
print(json.dumps({
    "name": __name__, "argv": sys.argv, "variables": dict(os.environ), "folder": os.getcwd(), "input": sys.stdin.read(),
    "beside": beside.__file__, "method": multiprocessing.get_start_method(), "leader": os.getsid(0) == os.getpid(),
    "imported": "lightning.pytorch" in sys.modules, "file": __file__,
}))
print("an error", file=sys.stderr)
sys.exit(3)
"""


def run(arguments: list[str], folder: Path, *, env: Mapping[str, str], **others: Any) -> tuple[Program, str, str]:
    (folder / "in").write_text("words")
    names = {"stdin": "r", "stdout": "w", "stderr": "w"}
    with (folder / "in").open() as source, (folder / "out").open("w") as out, (folder / "err").open("w") as err:
        files = dict(zip(names, (source.fileno(), out.fileno(), err.fileno()), strict=True))
        program = start(arguments, env=env, **files, **others)
    program.wait(60)
    return program, (folder / "out").read_text(), (folder / "err").read_text()


@pytest.mark.parametrize("as_module", [False, True])
def test_a_forked_program_has_the_state_of_a_new_interpreter(tmp_path: Path, as_module: bool) -> None:
    (tmp_path / "show.py").write_text(SHOW)
    (tmp_path / "beside.py").touch()
    script = str(tmp_path / "show.py")
    env = os.environ | {"WORD": "new", "PYTHONPATH": str(tmp_path)}
    arguments = ["-m", "show", "a", "b c"] if as_module else [script, "a", "b c"]
    program, out, err = run(arguments, tmp_path, env=env, cwd=tmp_path, new_session=True)
    assert isinstance(program, ForkedProgram) and program.returncode == 3 and err == "an error\n"
    line, after = out.splitlines()
    assert after == "at exit" and json.loads(line) == {
        "name": "__main__",
        "argv": [script, "a", "b c"],
        "variables": env,
        "folder": str(tmp_path),
        "input": "words",
        "beside": str(tmp_path / "beside.py"),
        "method": "fork",
        "leader": True,
        "imported": True,
        "file": script,
    }


def test_an_error_ends_a_program_with_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("raise ZeroDivisionError('mine')")
    program, _, err = run([str(tmp_path / "bad.py")], tmp_path, env=os.environ)
    assert program.returncode == 1 and err.endswith("ZeroDivisionError: mine\n")


def test_signals_reach_a_program(tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text("import signal; print('ready'); signal.pause()")
    with (tmp_path / "out").open("w+") as out, open(os.devnull) as nothing:
        files = {"stdin": nothing.fileno(), "stdout": out.fileno(), "stderr": out.fileno()}
        program = ForkedProgram([str(tmp_path / "waits.py")], env=os.environ, **files)
        with pytest.raises(subprocess.TimeoutExpired):
            program.wait(0.01)
        assert program.poll() is None
        program.send_signal(signal.SIGTERM)
        assert program.wait(60) == -signal.SIGTERM
        program.kill()  # does nothing: another process may have the number by now


def test_other_variables_read_at_import_need_a_new_interpreter(tmp_path: Path) -> None:
    (tmp_path / "show.py").write_text("import sys; sys.exit('torch' in sys.modules)")
    for env, is_forked in ((os.environ, True), (os.environ | {"OMP_NUM_THREADS": "3"}, False)):
        program, _, _ = run([str(tmp_path / "show.py")], tmp_path, env=env)
        assert program.returncode == is_forked and isinstance(program, ForkedProgram) == is_forked


CALLS = "from imagenet_opt.probe.isolated import call_isolated; print(call_isolated('os.path.basename', 'folder/name'))"


def run_python(*arguments: str) -> "subprocess.CompletedProcess[str]":
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run([sys.executable, *arguments], env=env, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_the_callers_script_is_not_run_again(tmp_path: Path) -> None:
    (tmp_path / "once.py").write_text("print('once', flush=True)\n" + CALLS)
    assert run_python(str(tmp_path / "once.py")).stdout == "once\nname\n"


@pytest.mark.slow
def test_the_imports_of_the_server_exist_and_start_no_cuda() -> None:
    assert all(find_spec(name) for name in IMPORTED)
    code = f"""
import importlib, torch
def started(*_): raise SystemExit("CUDA was asked for")
torch._C._cuda_init = torch._C._cuda_getDeviceCount = started
for name in {IMPORTED!r}: importlib.import_module(name)
"""
    done = run_python("-c", code)
    assert (done.returncode, done.stderr) == (0, "")
