"""Checkpoints are damaged, cannot be written, or are of another configuration."""

import os
from pathlib import Path

from imagenet_opt.run.checkpoint.names import step_files
from suites.faults.process_cases import IDENTICAL
from suites.faults.run import reached
from suites.faults.runs import Trial, case
from suites.faults.small_disk import small_disk
from tests.test_train import opened


def newest_checkpoint(trial: Trial) -> Path:
    """Of a run that was killed with at least two."""
    run = trial.started()
    run.until(lambda: len(step_files(trial.run_folder)) >= 2, "two checkpoints")
    run.kill()
    return step_files(trial.run_folder)[-1]


def _passed_over(trial: Trial, damaged: Path) -> str:
    step = int(damaged.stem.removeprefix("step_"))
    run = trial.goes_on("checkpoint skipped|damaged|incomplete")
    assert 0 < run.resumed_at < step, f"resumed at step {run.resumed_at}, the damaged one is of {step}"
    return f"skipped with a warning; {IDENTICAL}"


@case("a flipped bit in the newest checkpoint")
def checkpoint_flipped(trial: Trial) -> str:
    newest = newest_checkpoint(trial)
    flip_bit(newest, trial.random.randrange(newest.stat().st_size))
    return _passed_over(trial, newest)


@case("the newest checkpoint is half written")
def checkpoint_cut(trial: Trial) -> str:
    newest = newest_checkpoint(trial)
    os.truncate(newest, trial.random.randrange(newest.stat().st_size))
    return _passed_over(trial, newest)


def flip_bit(path: Path, place: int) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))


def _disk_fills(trial: Trial, leave: int) -> str:
    with small_disk(trial.run_folder, 60_000_000) as disk:
        trial.prefix, trial.seen = disk.prefix, disk.seen
        trial.epochs = 30
        run = trial.start()
        run.until(lambda: len(step_files(disk.seen)) >= 2, "two checkpoints")
        run.until_step(12)
        with run.paused():
            disk.fill(leave)
            before = step_files(disk.seen)
        run.until(lambda: "disk is full" in run.output, "a warning that the disk is full")
        with run.paused():
            kept = [path for path in before if path in step_files(disk.seen)]
            assert kept, "no checkpoint from before is left"
            opened(kept[-1])
            disk.free()
        newest = step_files(disk.seen)[-1]
        run.until(lambda: step_files(disk.seen)[-1] > newest, "a checkpoint after there is space again")
        run.ends(0)
        if leave:
            trial.is_like_clean()
        assert opened(disk.seen / "last.ckpt")["global_step"] == reached(disk.seen)
    return "continues, warns, saves again once there is room"


@case("no room for checkpoints")
def disk_almost_full(trial: Trial) -> str:
    return _disk_fills(trial, leave=1_000_000)


@case("not a byte left on the disk of the run")
def disk_full(trial: Trial) -> str:
    return _disk_fills(trial, leave=0)


@case("resumed with other settings")
def config_changed(trial: Trial) -> str:
    newest_checkpoint(trial)
    before = (trial.run_folder / "last.ckpt").read_bytes()
    for change, word in (("data.batch_size=4", "batch"), ("seed=1", "seed"), ("model.name=test_vit", "network")):
        trial.start(change).ends(2, "^CheckpointMismatch: ", word)
    assert before == (trial.run_folder / "last.ckpt").read_bytes(), "a refused resume has changed the checkpoint"
    run = trial.start("optimizer.lr=0.01", "data.num_workers=1", "~callbacks.throughput").ends(0)
    assert run.resumed_at > 0
    assert reached(trial.run_folder) == opened(trial.run_folder / "last.ckpt")["global_step"]
    return "batch size, seed, network: refused in one line; rate, workers, callbacks: resumes"
