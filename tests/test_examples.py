"""Each file of examples/ runs as its page says, and `imagenet-opt init` writes a project that trains."""

import os
import runpy
import socket
import sys
import textwrap
import time
from pathlib import Path

import pytest

from imagenet_opt.cli.main import run
from imagenet_opt.data.demo import demo_folder
from imagenet_opt.errors import ConfigError
from tests.processes import Forked

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(scope="module")
def small_demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return demo_folder(tmp_path_factory.mktemp("demo"), num_train=100, num_val=60)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*there is no last checkpoint:UserWarning")
@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("own_trainer.py", "accuracy"),
        ("lightning_loader.py", "trained 4 steps"),
        ("lightning_callbacks.py", "throughput/images_per_second"),
        ("timm_loop.py", "epoch 1: accuracy"),
        ("detector.py", "images (16, 3, 240, 320)"),
    ],
)
def test_an_example_runs(
    name: str,
    shown: str,
    small_demo: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name, *([str(small_demo)] if name != "lightning_callbacks.py" else [])])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert shown in capsys.readouterr().out


def start(name: str, data: Path, folder: Path, **variables: str) -> tuple[Forked, Path]:
    """The process of an example in `folder`, and the file of its output."""
    folder.mkdir(exist_ok=True)
    output = folder / f"output{len(list(folder.glob('output*')))}"
    with output.open("w") as file:
        command = [sys.executable, str(EXAMPLES / name), str(data)]
        return Forked(command, stdout=file, env={**os.environ, **variables}, cwd=folder), output


def lines_of(example: tuple[Forked, Path]) -> list[str]:
    """The lines that show its steps, after its end."""
    process, output = example
    assert process.wait(300) == 0, output.read_text()
    return [line for line in output.read_text().splitlines() if "epoch" in line]


@pytest.mark.slow
def test_the_plain_loop_resumes_at_the_next_batch_after_it_was_killed(small_demo: Path, tmp_path: Path) -> None:
    steps = lines_of(start("plain_loop.py", small_demo, tmp_path / "whole"))
    killed, output = start("plain_loop.py", small_demo, tmp_path / "killed")
    while "\n" not in output.read_text() and killed.poll() is None:
        time.sleep(0.01)
    killed.kill()
    killed.wait()
    assert output.read_text().startswith(f"{steps[0]}\n")
    rest = lines_of(start("plain_loop.py", small_demo, tmp_path / "killed"))
    assert len(steps) == 4 and len(rest) < 4
    assert rest == steps[4 - len(rest) :]


@pytest.mark.slow
def test_processes_of_torchrun_share_the_images(small_demo: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
    started = [start("torchrun.py", small_demo, tmp_path, **variables, **rank) for rank in ranks]
    for rank, example in enumerate(started):
        assert f"process {rank}, epoch 1: 50 images a step" in lines_of(example)[1]


def test_a_split_has_each_image_once_and_is_not_made_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def split(*words: str) -> None:
        monkeypatch.setattr(sys, "argv", ["split_folder.py", *words])
        runpy.run_path(str(EXAMPLES / "split_folder.py"))

    names = {f"{label}/{i:02}.png" for label in ("cat", "dog") for i in range(25)}
    for name in names:
        (tmp_path / "all" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "all" / name).write_bytes(name.encode())
    source, target = str(tmp_path / "all"), str(tmp_path / "split")
    split(source, target)
    assert f"data.root={target}" in capsys.readouterr().out
    train, val = ({f.read_bytes().decode() for f in (tmp_path / "split" / s).rglob("*.png")} for s in ("train", "val"))
    assert train | val == names and not train & val
    assert len(val) == 6
    single = tmp_path / "single"
    (single / "cat").mkdir(parents=True)
    (single / "cat/1.png").touch()
    mistakes = {(source, target): "exists", (): "usage", (target, "new"): f"data.root={target}"}
    for words, what in (mistakes | {(str(single), "new"): r"data\.val_folder=\. "}).items():
        with pytest.raises(SystemExit, match=what):
            split(*words)


@pytest.mark.slow
def test_commands_see_the_experiment_of_a_project(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setattr(sys, "argv", ["train.py", "plan", "experiment=mine", "--rate=100", "--loader-rate=100"])
    runpy.run_path(str(EXAMPLES / "project/train.py"), run_name="__main__")
    assert "1 to 4 " in capsys.readouterr().out  # the demo has 8 epochs


def test_the_page_shows_the_callback_of_a_new_project(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("init", [f"{tmp_path}/my project"])
    assert f"next: cd '{tmp_path}/my project' && python" in capsys.readouterr().out
    code = (tmp_path / "my project/my_callbacks/gradient_norm.py").read_text().partition("\n\n")[2]
    assert textwrap.indent(code, "    ") in (EXAMPLES.parent / "docs/own_project.md").read_text()
    with pytest.raises(ConfigError, match="is not empty; choose a new folder"):
        run("init", [str(tmp_path)])
