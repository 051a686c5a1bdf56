"""Processes that torchrun starts on one node, and on two nodes that one machine simulates."""

import json
import os
import signal
import socket
import subprocess
import sys
from itertools import count
from pathlib import Path

import psutil
import pytest

from imagenet_opt.config.compose import composed
from tests.processes import Forked, run_train
from tests.test_train import RECORDER, REPOSITORY, TINY, environment, metrics, opened

pytestmark = pytest.mark.slow
OF_A_PROCESS = tuple(word for word in TINY if not word.startswith(("trainer.devices=", "data.batch_size=")))
OUTPUTS = (f"output_{number}.log" for number in count())


def torchrun(folder: Path, root: Path, flags: list[str], *overrides: str) -> tuple[Forked, Path]:
    """torchrun of the recorder's run, and the file of its output."""
    arguments = [f"data.root={root}", f"hydra.run.dir={folder}", *OF_A_PROCESS, "data.batch_size=3"]
    arguments += ["allow_targets=[recorder]", "+callbacks.recorder._target_=recorder.Recorder"]
    return start_torchrun(folder, flags, *arguments, f"+callbacks.recorder.folder={folder.parent}", *overrides)


def start_torchrun(folder: Path, flags: list[str], *arguments: str) -> tuple[Forked, Path]:
    """torchrun, and the file of its output. torchrun starts new interpreters."""
    start = [sys.executable, "-m", "torch.distributed.run", *flags, str(REPOSITORY / "train.py")]
    path = os.pathsep.join([str(folder.parent), os.environ.get("PYTHONPATH", "")])
    variables = environment(folder.parent, GLOO_SOCKET_IFNAME="lo", PYTHONPATH=path, PYTHONFAULTHANDLER="1")
    output = folder.parent / next(OUTPUTS)
    with output.open("w") as file:
        command = [*start, *arguments, "trainer=multi_node"]
        return Forked(command, stdout=file, env=variables, cwd=folder.parent), output


def ended(*programs: tuple[Forked, Path]) -> list[str]:
    """Outputs of programs that must end with 0. If one hangs, the outputs show where their processes are."""
    try:
        codes = [process.wait(240) for process, _ in programs]
    except subprocess.TimeoutExpired:
        codes = [abort(process) for process, _ in programs]
    finally:
        for process, _ in programs:
            process.kill()
    outputs = [output.read_text() for _, output in programs]
    assert not any(codes), "\n\n".join(outputs)
    return outputs


def abort(process: Forked) -> int:
    """Abort a program and the processes that it has started; PYTHONFAULTHANDLER prints their stacks."""
    if process.poll() is None:
        for one in (*psutil.Process(process.pid).children(recursive=True), process):
            one.send_signal(signal.SIGABRT)
    return process.wait(10)


def seen_by(folder: Path, rank: int, epoch: int) -> set[int]:
    """Samples of a rank in an epoch, after a check that no sample came twice."""
    seen = json.loads((folder / f"rank{rank}.json").read_text())["seen"]
    indices = [index for row in seen if row[0] == epoch for index in row[1:]]
    assert len(set(indices)) == len(indices) > 0
    return set(indices)


def test_one_node_and_then_two_train_one_run(images_root: Path, tmp_path: Path) -> None:
    (tmp_path / "recorder.py").write_text(RECORDER)
    run = tmp_path / "run"
    one = ["--standalone", "--nproc-per-node=2"]
    ended(torchrun(run, images_root, one, "trainer.max_steps=4"))
    first, second = (seen_by(tmp_path, rank, 0) for rank in (0, 1))
    assert not first & second and len(first | second) == 4 * 2 * 3
    checkpoint = opened(run / "last.ckpt")
    assert (checkpoint["global_step"], checkpoint["ImageData"]["epoch"], checkpoint["ImageData"]["step"]) == (4, 0, 4)

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    two = ["--nnodes=2", "--nproc-per-node=1", "--master-addr=127.0.0.1", f"--master-port={port}"]
    nodes = [torchrun(run, images_root, [*two, f"--node-rank={rank}"]) for rank in (0, 1)]
    outputs = ended(*nodes)
    assert "at step 4" in outputs[0]
    assert opened(run / "last.ckpt")["global_step"] == 12
    rest = seen_by(tmp_path, 0, 0) | seen_by(tmp_path, 1, 0)
    assert len(rest) == 2 * 2 * 3 and not rest & (first | second)
    assert not seen_by(tmp_path, 0, 1) & seen_by(tmp_path, 1, 1)
    weights = [json.loads((tmp_path / f"rank{rank}.json").read_text())["weights"] for rank in (0, 1)]
    assert weights[0] == weights[1]
    steps = [int(row["step"]) for row in metrics(run) if row["train/loss"]]
    assert steps == sorted(set(steps)) == [1, 3, 5, 7, 9, 11]
    assert len(list(tmp_path.rglob("last.ckpt"))) == len(list(tmp_path.rglob("summary.json"))) == 1


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, ("auto", "1")),
        ({"SLURM_NTASKS_PER_NODE": "4", "SLURM_NNODES": "3"}, ("4", "3")),
        ({"SLURM_NNODES": "3", "LOCAL_WORLD_SIZE": "8", "GROUP_WORLD_SIZE": "2"}, ("8", "2")),  # torchrun within a job
    ],
)
def test_multi_node_takes_its_numbers_from_slurm_or_torchrun(
    environment: dict[str, str], expected: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SLURM_NTASKS_PER_NODE", "SLURM_NNODES", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    trainer = composed(("data=demo", "trainer=multi_node")).trainer
    assert (trainer.devices, str(trainer.num_nodes)) == expected
    assert (trainer.strategy, trainer.max_epochs) == ("ddp", 8)


def test_torchrun_without_a_run_folder_is_refused(tmp_path: Path) -> None:
    ranks = {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}
    done = run_train([], cwd=tmp_path, environment=environment(tmp_path, **ranks))
    assert done.returncode == 2
    assert done.stderr.startswith("ConfigError: torchrun starts several processes")
    assert "hydra.run.dir=FOLDER" in done.stderr and list(tmp_path.iterdir()) == []
