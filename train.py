"""Train a network on folders of images: `python train.py --help`."""

import gc
import os
import sys
import time
from pathlib import Path

import hydra
import psutil
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from imagenet_opt.cli.mistakes import check_flags, report_mistakes
from imagenet_opt.config.compose import check_all
from imagenet_opt.config.dataset import check_folders
from imagenet_opt.config.overrides import complete, config_folder, follow_job
from imagenet_opt.errors import Preempted, WorkerDied
from imagenet_opt.run.stop.signals import stop
from imagenet_opt.training.folder_lock import removed_if_refused


def train(config: DictConfig) -> None:
    """One run in this process: build, fit, say what came out."""
    process_began = psutil.Process().create_time()
    check_folders(config)
    if sys.stderr.isatty() and os.environ.get("LOCAL_RANK", "0") == "0":  # logs and pipes need no sign of life
        print("loading torch and Lightning ...", file=sys.stderr, flush=True)
    gc.disable()  # among imports collections take a second and free nothing
    from lightning.pytorch.utilities import rank_zero_info

    from imagenet_opt.data.prefetcher import died
    from imagenet_opt.run.checkpoint.files import step_files
    from imagenet_opt.run.loggers.wandb_logger import finish
    from imagenet_opt.run.stop.peers import explain
    from imagenet_opt.training.build_run import build_run
    from imagenet_opt.training.folder_lock import keep_others_out
    from imagenet_opt.training.preempted import STATUS, clear, record
    from imagenet_opt.training.quiet import quiet
    from imagenet_opt.training.summary import print_summary, setup_of, summarize
    from imagenet_opt.training.summary_file import write_summary

    gc.enable()
    import_seconds = time.time() - process_began
    quiet()
    keep_others_out(Path(config.run_folder).resolve())
    run = build_run(config)
    clear(run.folder)
    exit_code = 1
    try:
        try:
            run.trainer.fit(run.model, datamodule=run.data, ckpt_path=run.checkpoint, weights_only=True)
        except (RuntimeError, WorkerDied) as error:
            death = error if isinstance(error, WorkerDied) else died(error) or explain(error)
            if stop.why and isinstance(death, WorkerDied):  # by the same signal, sent to all
                raise Preempted(stop.reason) from error
            if death is None or death is error:
                raise
            raise death from error
        if run.checkpoint is not None and run.trainer.global_step == run.done_steps:
            rank_zero_info(f"nothing left to train after step {run.done_steps}: raise trainer.max_epochs or max_steps")
        elif run.trainer.is_global_zero:
            numbers = summarize(run.trainer, import_seconds=import_seconds, run_seconds=time.time() - process_began)
            write_summary(numbers, run.folder)
            print_summary(numbers, run.folder, setup_of(run.trainer))
        exit_code = 0
    except Preempted:
        exit_code = STATUS
        if run.trainer.is_global_zero:  # which speaks for all: launchers take another's status for a failure of the run
            newest = next(reversed(step_files(run.folder)), None)
            raise record(run.folder, global_step=max(run.trainer.global_step, run.done_steps), newest=newest) from None
    finally:
        stop.over = True
        for logger in run.trainer.loggers:
            finish(logger, exit_code=exit_code, preempted=exit_code == STATUS)


@hydra.main(config_path=str(config_folder()), config_name="train", version_base="1.3")
def main(config: DictConfig) -> float | None:
    if HydraConfig.get().mode == RunMode.MULTIRUN:
        from imagenet_opt.sweep.job import run_job

        stop.restore()
        return run_job(Path(__file__))
    report_mistakes(lambda: train_in_folder(config))  # here too: what passes through Hydra gets a line before it
    return None


def train_in_folder(config: DictConfig) -> None:
    with removed_if_refused(Path(config.run_folder)):
        train(config)


if __name__ == "__main__":
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # so that mistakes arrive in report_mistakes as they were raised
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that spin while they wait starve the loader's workers
    stop.install()
    report_mistakes(lambda: check_flags(sys.argv[1:]))
    sys.argv[1:] = report_mistakes(lambda: follow_job(complete(sys.argv[1:])))
    check_all()
    report_mistakes(main)
