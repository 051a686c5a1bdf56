"""The trainer beside a bare PyTorch loop: same network, batch and optimizer, in turns of a few steps in one process.

    python -m suites.benchmarks.trainer_vs_loop [--cycles 150] [--model resnet10t] [--batch 50] [--image-size 64]

All loops train on one batch that stays in memory, in float32, on one CPU for each thread of torch. The trainer has the
callbacks of a usual run, except those that write checkpoints or start a process. One of the two trainers logs no row,
the other logs a row of metrics.csv at each step. Prints images per second, the ratio of trainer and bare loop, and the
milliseconds of a row, each with its 95 % interval. Every cycle is a block: one turn of each loop.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as train.py does
os.environ.setdefault("OMP_PROC_BIND", "true")

import argparse
import math
from functools import partial
from statistics import fmean, median, stdev

import torch
from omegaconf import DictConfig, open_dict
from torch import nn
from torch.nn.functional import cross_entropy

from imagenet_opt.config.build import build_model, build_trainer
from imagenet_opt.config.compose import composed
from imagenet_opt.machine import cpu_name, usable_cpus, versions
from imagenet_opt.measure.stats.block_ratios import pair_ratio, student_quantile
from imagenet_opt.model.network import build_network
from imagenet_opt.model.optimizer import build_optimizer
from imagenet_opt.probe.alternation import Alternation, Turns, TurnsOfFit
from imagenet_opt.probe.device_steps import random_batch
from imagenet_opt.probe.resident_loader import ResidentLoader
from imagenet_opt.probe.throwaway_run import only, run_folder
from imagenet_opt.training.quiet import quiet

CALLBACKS = ("acceleration", "mixing", "throughput", "bottleneck", "gpu_utilization", "learning_rate")
OVERRIDES = (
    "data=demo",
    "trainer.accelerator=cpu",
    "trainer.devices=1",
    "trainer.precision=32-true",
    "callbacks.acceleration.channels_last=false",
    "model.label_smoothing=0",
    "optimizer.no_decay=none",
)
NO_ROWS = 1_000_000_000
DEVICE = torch.device("cpu")


def train(config: DictConfig, every_n_steps: int, turns: Turns) -> None:
    """Lightning's loop with the project's model and callbacks, which logs a row every so many steps."""
    logger = config.logger.csv
    with run_folder(only(config, callbacks=CALLBACKS)) as config:
        with open_dict(config):
            config.logger = {"csv": {**logger, "folder": config.run_folder}}
            config.trainer.log_every_n_steps = every_n_steps
        trainer = build_trainer(config)
        trainer.callbacks.append(TurnsOfFit(turns))  # type: ignore[attr-defined]
        model = build_model(config, global_batch=config.data.batch_size)
        batch = random_batch(config, trainer)
        trainer.fit(model, train_dataloaders=ResidentLoader(batch), weights_only=True)


def loop(config: DictConfig, turns: Turns) -> None:
    """A loop written out."""
    num, side = config.data.batch_size, config.data.image_size
    images, labels = torch.randn(num, 3, side, side), torch.randint(config.model.num_classes, (num,))
    network: nn.Module = build_network(config.model.name, num_classes=config.model.num_classes).train()
    sgd = config.optimizer
    options = dict(name="sgd", lr=sgd.lr, momentum=sgd.momentum, nesterov=sgd.nesterov, weight_decay=sgd.weight_decay)
    optimizer = build_optimizer(network, device=DEVICE, global_batch=num, fused=sgd.fused, no_decay="none", **options)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    while turns.begin_step(DEVICE):
        loss = cross_entropy(network(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        schedule.step()
        turns.end_step(num)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=150)
    parser.add_argument("--window", type=float, default=0.5, help="least seconds of a turn (default: %(default)s)")
    parser.add_argument("--model", default="resnet10t")
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--image-size", type=int, default=64)
    options = parser.parse_args()
    quiet()
    given = (f"model.name={options.model}", f"data.batch_size={options.batch}", f"data.image_size={options.image_size}")
    config = composed((*OVERRIDES, *given))
    with open_dict(config):
        config.model.num_classes = 10
    print(f"{cpu_name()}, {usable_cpus()} CPUs, {torch.get_num_threads()} threads; {versions()}", flush=True)
    loops = {
        "bare loop": partial(loop, config),
        "trainer": partial(train, config, NO_ROWS),
        "trainer with rows": partial(train, config, 1),
    }
    with Alternation(loops, window_seconds=options.window) as alternation:
        alternation.cycle()
        cycles = [alternation.cycle() for _ in range(options.cycles)]
    for name, error in alternation.failures.items():
        raise RuntimeError(name) from error
    rates = {name: [cycle[name] for cycle in cycles] for name in loops}
    for name, values in rates.items():
        print(f"{name}: {median(values):.1f} images/s")
    ratio = pair_ratio(rates["trainer"], rates["bare loop"])
    print(f"trainer / bare loop: {ratio.ratio:.4f} ({ratio.low:.4f} to {ratio.high:.4f})")
    pairs = zip(rates["trainer with rows"], rates["trainer"], strict=True)
    costs = [1000 * options.batch * (1 / with_rows - 1 / without) for with_rows, without in pairs]
    reach = student_quantile(0.975, len(costs) - 1) * stdev(costs) / math.sqrt(len(costs))
    print(f"a row of metrics: {fmean(costs):+.2f} ms ({fmean(costs) - reach:+.2f} to {fmean(costs) + reach:+.2f})")


if __name__ == "__main__":
    main()
