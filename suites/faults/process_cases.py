"""Processes are killed, signalled, lost."""

import json
import os
import signal
import time
from collections import Counter

import psutil

from suites.faults.run import STEPS_PER_EPOCH, Run, reached
from suites.faults.runs import Trial, case

STEPS_PER_KILL = 14
"""Steps between two kills on average: several checkpoints, more than an epoch."""
IDENTICAL = "resumes, bit-identical"


@case("kill -9 at random moments")
def kill_9(trial: Trial) -> str:
    trial.epochs = (trial.kills + 2) * STEPS_PER_KILL // STEPS_PER_EPOCH + 1
    start_up_seconds = trial.lab.clean(trial.epochs).starts[0].recover_seconds
    landed: Counter[str] = Counter()
    last_step = trial.epochs * STEPS_PER_EPOCH
    while len(trial.starts) < trial.kills and reached(trial.run_folder) < last_step - 1:
        run = trial.start()
        if trial.random.random() < 0.2:
            run.wait_or_kill(trial.random.uniform(0, start_up_seconds))
        else:
            steps = trial.random.randint(1, 2 * STEPS_PER_KILL - 1)
            run.until_step(min(run.reached_before + steps, last_step - 1))
            run.wait_or_kill(trial.random.uniform(0, 0.2), all_of_it=trial.random.random() < 0.7)
        assert run.process.returncode in (0, -signal.SIGKILL), run.errors[-1:]
        landed[run.place()] += 1
    trial.goes_on()
    places = ", ".join(f"{count} in {place}" for place, count in landed.most_common())
    return f"{IDENTICAL}; killed {places}"


def _stops_and_goes_on(trial: Trial, number: int, *changes: str, to_all: bool, **environment: str) -> str:
    run = trial.started(*changes, **environment)
    time.sleep(trial.random.uniform(0, 0.2))
    sent_at = time.monotonic()
    run.send(number, to_all=to_all)
    run.ends(75)
    seconds = time.monotonic() - sent_at
    notes = list(trial.run_folder.rglob("preempted.json"))
    assert notes, "no preempted.json"
    json.loads(notes[0].read_text())
    assert trial.goes_on().lost_steps == 0, "steps were lost"
    return f"status 75 after {seconds:.1f} s; {IDENTICAL}"


@case("SIGTERM")
def sigterm(trial: Trial) -> str:
    return _stops_and_goes_on(trial, signal.SIGTERM, to_all=False)


@case("SIGTERM to all processes of the job")
def sigterm_to_all(trial: Trial) -> str:
    return _stops_and_goes_on(trial, signal.SIGTERM, to_all=True)


@case("SIGTERM to all processes of the job, W&B's among them")
def sigterm_to_all_and_wandb(trial: Trial) -> str:
    return _stops_and_goes_on(trial, signal.SIGTERM, "logger=[csv,wandb]", to_all=True, WANDB_MODE="offline")


@case("SIGUSR1 to all processes of the job, as SLURM sends it")
def sigusr1(trial: Trial) -> str:
    return _stops_and_goes_on(trial, signal.SIGUSR1, to_all=True)


@case("Ctrl-C")
def ctrl_c(trial: Trial) -> str:
    return _stops_and_goes_on(trial, signal.SIGINT, to_all=True)


@case("Ctrl-C twice")
def ctrl_c_twice(trial: Trial) -> str:
    run = trial.started()
    run.send(signal.SIGINT, to_all=True)
    run.until(lambda: "Ctrl-C" in run.output, "an answer to the first")
    with run.paused():  # so that it cannot end before the second comes
        time.sleep(1)
        run.send(signal.SIGINT, to_all=True)
    run.ends(130)
    trial.goes_on()
    return f"status 130; {IDENTICAL}"


@case("a loader worker is killed")
def worker_killed(trial: Trial) -> str:
    run = trial.started()
    trial.random.choice(run.workers()).kill()
    run.ends(2, "^WorkerDied: ")
    trial.goes_on()
    return f"explained: WorkerDied; {IDENTICAL}"


@case("the clock jumps by a day, forth and back")
def clock_jumps(trial: Trial) -> str:
    (trial.folder / "sitecustomize.py").write_text(
        "import itertools, time\n"
        "calls, true = itertools.count(), time.time\n"
        "time.time = lambda: true() + (0, 86400, -86400)[next(calls) // 500 % 3]\n"
    )
    jumping = f"{trial.folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    trial.start(PYTHONPATH=jumping).ends(0)
    trial.is_like_clean()
    return "runs to the end, bit-identical"


def _two_ranks(trial: Trial) -> tuple[Run, psutil.Process]:
    """A run of two processes, and the second of them."""
    trial.overrides = ["trainer.devices=2", "data.batch_size=4"]
    trial.lab.clean(trial.epochs, *trial.overrides)
    run = trial.started()
    return run, next(child for child in run.process.children() if child.environ().get("LOCAL_RANK") == "1")


@case("rank 1 of two is killed")
def rank_1_killed(trial: Trial) -> str:
    run, second = _two_ranks(trial)
    second.kill()
    killed_at = time.monotonic()
    status = run.wait(timeout=60)
    assert status > 0, f"exit status {status}"
    assert any("rank" in line or "process" in line for line in run.errors), "no reason is told"
    seconds = time.monotonic() - killed_at
    trial.goes_on()
    return f"explained, status {status}: the other ends after {seconds:.1f} s; {IDENTICAL}"


@case("rank 0 of two is killed")
def rank_0_killed(trial: Trial) -> str:
    run, _ = _two_ranks(trial)
    run.kill(all_of_it=False)
    killed_at = time.monotonic()
    while run.members() and time.monotonic() < killed_at + 60:
        time.sleep(0.1)
    assert not run.members(), "its other processes still run after 60 s"
    seconds = time.monotonic() - killed_at
    trial.goes_on()
    return f"the other ends after {seconds:.1f} s; {IDENTICAL}"
