"""The loss, the memory, and Weights & Biases fail."""

import json
import socket

import psutil

from suites.faults.run import STEPS_PER_EPOCH
from suites.faults.runs import EPOCHS, Trial, case
from suites.faults.wandb_server import wandb_server
from tests.test_train import opened

ALLOWED = "++allow_targets=[suites.faults.injected]"
BAD_BATCH = (ALLOWED, "+callbacks.trouble._target_=suites.faults.injected.BadBatch", "+callbacks.trouble.step=20")
SMALL_MEMORY = (
    ALLOWED,
    "+callbacks.trouble._target_=suites.faults.injected.SmallMemory",
    "+callbacks.trouble.max_images=5",
)


def _finished(trial: Trial) -> None:
    checkpoint = opened(trial.run_folder / "last.ckpt")
    assert checkpoint["global_step"] == EPOCHS * STEPS_PER_EPOCH
    assert all(tensor.isfinite().all() for tensor in checkpoint["network"].values() if tensor.is_floating_point())


def _stops_at_nan(trial: Trial, *overrides: str) -> str:
    trial.start(*overrides).ends(2, "^NonFiniteLoss: ")
    notes = json.loads((trial.run_folder / "nonfinite.json").read_text())
    assert notes, "nonfinite.json is empty"
    return "explained: NonFiniteLoss, nonfinite.json"


@case("the loss diverges to NaN")
def loss_diverges(trial: Trial) -> str:
    return _stops_at_nan(trial, "optimizer.lr=1e30")


@case("one batch of NaN")
def nan(trial: Trial) -> str:
    ended = _stops_at_nan(trial, *BAD_BATCH)
    trial.goes_on()
    return f"{ended}; without it resumes, bit-identical"


@case("out of memory")
def out_of_memory(trial: Trial) -> str:
    trial.start(*SMALL_MEMORY).ends(0, "micro")
    _finished(trial)
    return "micro-batch halves"


@case("out of memory on two ranks")
def out_of_memory_ddp(trial: Trial) -> str:
    run = trial.start(*SMALL_MEMORY[:2], "+callbacks.trouble.max_images=3", "trainer.devices=2", "data.batch_size=4")
    assert run.wait() == 2, f"exit status {run.process.returncode}"
    assert any("OutOfMemory: " in line and "model.micro_batch_size" in line for line in run.errors)
    return "explained: OutOfMemory, with the micro-batch that fits"


@case("W&B cannot be reached")
def wandb_unreachable(trial: Trial) -> str:
    with socket.socket() as taken:  # bound, but not listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        trial.start("logger=[csv,wandb]", WANDB_BASE_URL=url, WANDB_API_KEY="0" * 40).ends(0)
    trial.is_like_clean()
    return "continues offline, bit-identical"


@case("W&B's server fails in the middle")
def wandb_fails(trial: Trial) -> str:
    with wandb_server() as server:
        run = trial.started("logger=[csv,wandb]", WANDB_BASE_URL=server.url, WANDB_API_KEY="0" * 40)
        run.until(lambda: server.num_rows > 0, "rows at the server")
        server.failing = True
        run.ends(0, "wandb sync")
    trial.is_like_clean()
    return "continues, says how to send the rest, bit-identical"


@case("W&B's process is killed")
def wandb_killed(trial: Trial) -> str:
    run = trial.started("logger=[csv,wandb]", WANDB_MODE="offline")
    service = [child for child in run.process.children(recursive=True) if "wandb" in child.name()]
    assert service, "W&B has no process of its own"
    for process in service:
        psutil.Process(process.pid).kill()
    assert run.wait() == 0, f"exit status {run.process.returncode}"
    trial.is_like_clean()
    noise = ", W&B prints a traceback as Python exits" if "Traceback" in run.output else ""
    return f"resumes, bit-identical{noise}"
