"""Trains the rows of a job, one run after the other in this process: `python suites/gpu/fits.py JOB`, see --help.

jobs.yaml has the job's `overrides` of train.py, and `rows`: name -> further overrides. Two words are of this script:
KEY*=FACTOR multiplies a number, and alone=true trains on one batch that stays on the device, which is resized in each
step: the run without its data. Every second round goes backwards. Rows share a network, so that torch compiles once,
or have --own-networks. $KEEP/result.json gets the numbers of each row and round; $KEEP/ROW_ROUND has metrics.csv. Rows
for which no time is left are left out.
"""

import argparse
import gc
import json
import os
import shlex
import time
from pathlib import Path
from typing import Any

import torch
import yaml
from omegaconf import DictConfig, OmegaConf, open_dict

from imagenet_opt.config.compose import composed
from imagenet_opt.data.datamodule import ImageData
from imagenet_opt.probe.resident_loader import ResidentLoader, take_one
from imagenet_opt.training.build_run import build_run
from imagenet_opt.training.quiet import quiet
from imagenet_opt.training.summary import summarize

ON_GPU = torch.cuda.is_available()
TINY = "model.name=resnet10t data.batch_size=4 data.num_workers=1 trainer.max_steps=3 trainer.limit_val_batches=1"
"""Without a GPU; this only shows mistakes."""
RATE = "throughput/images_per_second"
TOLD = ("val/acc1", "throughput/", "bottleneck/", "startup/", "memory/", "gpu/", "host/", "train/acc1", "loader/num")
Numbers = dict[str, Any]


def job_named(name: str) -> dict[str, Any]:
    jobs = yaml.safe_load(Path(__file__).with_name("jobs.yaml").read_text())
    return next(job for job in jobs if job["name"] == name)


def words_of(text: str) -> list[str]:
    return shlex.split(os.path.expandvars(text))


def configured(words: list[str]) -> tuple[DictConfig, bool]:
    """The configuration of a run that starts anew and writes no checkpoint or code, and whether it trains alone."""
    own = dict(word.split("=", 1) for word in words if word.startswith("alone=") or "*=" in word)
    plain = [word for word in words if word.partition("=")[0] not in own]
    config = composed((*plain, *([] if ON_GPU else TINY.split()), "resume_from=null"))
    alone = own.pop("alone", "false") == "true"
    with open_dict(config):
        for key, factor in own.items():
            name = key.removesuffix("*")
            OmegaConf.update(config, name, OmegaConf.select(config, name) * float(factor))
        config.callbacks.pop("checkpoint", None)
        config.callbacks.acceleration.stored_code = False
    return config, alone


def keep_one_batch(data: ImageData) -> None:
    """Let the training repeat the first batch of its loader."""
    make = data.train_dataloader

    def train_dataloader() -> Any:
        loader = make()
        return ResidentLoader(take_one(loader), num=len(loader), finish=loader.finish)

    data.train_dataloader = train_dataloader  # type: ignore[method-assign]


def fit(words: list[str], folder: Path, net: Any = None) -> tuple[Numbers, Any]:
    """Numbers of a run and its network. net: of an earlier run, instead of a new network."""
    config, alone = configured(words)
    folder.mkdir(parents=True)
    config.run_folder = str(folder)
    run = build_run(config)
    if net is not None:
        net._compiled_call_impl = None  # torch keeps the compiled code
        run.model.net = net.to(memory_format=torch.contiguous_format)
    if alone:
        keep_one_batch(run.data)
    began, cpu = time.perf_counter(), time.thread_time()
    run.trainer.fit(run.model, datamodule=run.data)
    seconds = time.perf_counter() - began
    numbers = summarize(run.trainer, import_seconds=0.0, run_seconds=seconds)
    told = {name: round(value, 5) for name, value in numbers.items() if name.startswith(TOLD)}
    return told | {
        "seconds": round(seconds, 1),
        "main_thread_seconds": round(time.thread_time() - cpu, 2),
    }, run.model.net


def cleaned() -> None:
    gc.collect()
    if ON_GPU:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def main(job: dict[str, Any], rounds: int, *, own_networks: bool) -> None:
    keep, rows, net = Path(os.environ["KEEP"]), list(job["rows"]), None
    found: dict[str, list[Numbers]] = {name: [] for name in rows}
    end = time.perf_counter() + float(os.environ["JOB_SECONDS"]) - 25  # the imports took up to 20 s
    lasted: dict[str, float] = {}  # of a row's first run, only its warm part counts
    for number in range(rounds):
        for name in rows[:: -1 if number % 2 else 1]:
            began = time.perf_counter()
            if began + lasted.get(name, max(lasted.values(), default=0.0)) > end:
                print(f"{name}, round {number}: left out, no time")
                continue
            try:
                words = words_of(f"{job['overrides']} {job['rows'][name]}")
                told, trained = fit(words, keep / f"{name}_{number}", net)
                net = None if own_networks else trained
            except Exception as error:
                told = {"error": f"{type(error).__name__}: {error}"[:300]}
            trained = None
            cleaned()
            found[name].append({"round": number} | told)
            (keep / "result.json").write_text(json.dumps({"rows": found}, indent=1))
            print(name, json.dumps(told), flush=True)
            lasted[name] = time.perf_counter() - began - told.get("startup/compile_seconds", 0.0)
    if any("error" in told for rounds_of in found.values() for told in rounds_of):
        raise SystemExit("a row failed")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--own-networks", action="store_true")
    parser.add_argument("--gib", type=float, help="keep torch from taking more of the GPU's memory")
    given = parser.parse_args()
    if given.gib and ON_GPU:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, given.gib * 2**30 / total))
    quiet()
    main(job_named(given.job), given.rounds, own_networks=given.own_networks)
