"""What a training step and a row of metrics cost the main thread, whose time a fast GPU waits for.

    OMP_NUM_THREADS=1 python suites/benchmarks/host_time.py [--rows 30] [OVERRIDE ...]

A run of train.py's demo with all default callbacks and loggers, except checkpoints; a row every 20 steps. The network
is 161 vectors, as many as ResNet-50 has parameters, whose forward and backward take little time. Counted is the CPU
time of the main thread: of a plain step the median, of a row what its step and the next three take more than four plain
steps, again the median. Four keys are added, as many as a run on a GPU logs beyond those of a CPU. Prints JSON.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as train.py does

import argparse
import json
import logging
import tempfile
import time
import warnings
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from torch import Tensor, nn

from imagenet_opt.config.compose import composed
from imagenet_opt.probe.throwaway_run import offline
from imagenet_opt.training.build_run import build_run

STEPS_PER_ROW, NUM_PARAMETERS, NUM_CLASSES = 20, 161, 10
OVERRIDES = (
    "~callbacks.checkpoint", "data.num_workers=1", "data.batch_size=2", "data.image_size=16", "trainer.accelerator=cpu",
    "trainer.limit_val_batches=0", "trainer.max_epochs=10000", f"trainer.log_every_n_steps={STEPS_PER_ROW}",
    "trainer.precision=32-true",
)  # fmt: skip


class Vectors(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.vectors = nn.ParameterList(torch.zeros(NUM_CLASSES) for _ in range(NUM_PARAMETERS))

    def forward(self, images: Tensor) -> Tensor:
        return torch.stack(list(self.vectors)).sum(0).expand(len(images), -1)


class MoreKeys(Callback):
    """Logs four keys, in the way of the version that runs."""

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *_: Any) -> None:
        if trainer.global_step % STEPS_PER_ROW == 0:
            numbers = {f"more/{i}": 1.0 for i in range(4)}
            try:
                from imagenet_opt.run.rows import log_numbers
            except ImportError:  # before rows were written late
                tensors = {name: torch.tensor(number) for name, number in numbers.items()}
                pl_module.log_dict(tensors, rank_zero_only=True)
            else:
                log_numbers(trainer, numbers)


class Stamps(Callback):
    def __init__(self, num_steps: int) -> None:
        self.nanoseconds: list[int] = []
        self._num_steps = num_steps

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        self.nanoseconds.append(time.thread_time_ns())
        trainer.should_stop = len(self.nanoseconds) > self._num_steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=30, help="after two that do not count (default: %(default)s)")
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_intermixed_args()
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    config = composed((*OVERRIDES, *options.overrides))
    with tempfile.TemporaryDirectory() as folder, offline():
        config.run_folder = config.trainer.default_root_dir = folder
        run = build_run(config)
        run.model.net = Vectors()
        stamps = Stamps((options.rows + 2) * STEPS_PER_ROW + 1)
        run.trainer.callbacks[:] = [stamps, *run.trainer.callbacks, MoreKeys()]  # type: ignore[attr-defined]
        run.trainer.fit(run.model, datamodule=run.data)
        num_keys = len(run.trainer.logged_metrics)
    steps = [(b - a) / 1000 for a, b in pairwise(stamps.nanoseconds)]
    cycles = [steps[i : i + STEPS_PER_ROW] for i in range(STEPS_PER_ROW, len(steps) - STEPS_PER_ROW, STEPS_PER_ROW)]
    plain = median(median(cycle) for cycle in cycles)
    # A cycle begins with the step after a row's; the row's own step is its last.
    row = median(last[-1] + sum(cycle[:3]) - 4 * median(last) for last, cycle in pairwise(cycles))
    print(json.dumps({"plain_step_us": round(plain), "row_us": round(row), "keys": num_keys, "rows": len(cycles)}))


if __name__ == "__main__":
    main()
