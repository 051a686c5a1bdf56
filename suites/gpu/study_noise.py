"""How much three equal rows differ: whole runs, each in a fresh process, and the network alone in one process.

The order of the rows rotates from round to round. $KEEP/result.json gets, for both ways, images per second by round and
row, seconds of a turn, and the standard deviation of the logarithm of a row's ratio to the first row of its round.
"""

import json
import math
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, stdev
from typing import Any

NUM_ROWS, LONGEST_IMPORTS, ALONE_SECONDS = 3, 25, 20
OVERRIDES = (
    "experiment=aggressive $DATA data.prefetch_factor=2 data.batch_size=128 callbacks.acceleration.compile=false "
    "callbacks.acceleration.cuda_graph=true trainer.max_steps=100 trainer.max_epochs=1 trainer.limit_val_batches=0"
)


def whole_run(name: str) -> float:
    from suites.gpu.fits import RATE, fit, words_of

    return float(fit(words_of(OVERRIDES), Path(os.environ["KEEP"], name))[0][RATE])


def in_rounds(turn: Callable[[str], float], end: float, keep: Callable[[dict[str, Any]], None]) -> None:
    """Rounds until `end`, but two at least; `keep` gets the numbers after each. turn: name of a row and round -> images
    per second."""
    rounds: list[list[float]] = []
    seconds: list[float] = []
    while len(rounds) < 2 or time.perf_counter() + NUM_ROWS * seconds[-1] < end:
        rates = [0.0] * NUM_ROWS
        for i in range(NUM_ROWS):
            row, began = (i + len(rounds)) % NUM_ROWS, time.perf_counter()
            rates[row] = turn(f"row{row}_{len(rounds)}")
            seconds.append(time.perf_counter() - began)
        rounds.append(rates)
        print(rates, flush=True)
        ratios = [math.log(rate / rates[0]) for rates in rounds for rate in rates[1:]]
        numbers = {"first_turn_seconds": seconds[0], "turn_seconds": mean(seconds[1:])}
        numbers |= {"deviation_of_ratio": stdev(ratios)}
        keep(numbers | {f"round {i}, images/s": rates for i, rates in enumerate(rounds)})


def write(found: dict[str, Any], name: str, numbers: dict[str, Any]) -> None:
    found[name] = numbers
    Path(os.environ["KEEP"], "result.json").write_text(json.dumps(found, indent=1))


def main() -> None:
    found: dict[str, Any] = {}
    end = time.perf_counter() + float(os.environ["JOB_SECONDS"]) - LONGEST_IMPORTS
    context: Any = get_context("forkserver")
    # So that the imports happen once. A module that asks for CUDA when it is imported would spoil the forked processes.
    context.set_forkserver_preload(["torch", "lightning.pytorch", "timm", "imagenet_opt.training.build_run"])
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as fresh:
        in_rounds(
            lambda name: fresh.submit(whole_run, name).result(),
            end - ALONE_SECONDS,
            partial(write, found, "fresh processes, whole runs"),
        )
    from suites.gpu import ceiling  # after the runs, which need the GPU for themselves

    num = 128 if ceiling.ON_GPU else 2
    net, images = ceiling.network(), ceiling.images_of(num)
    step = ceiling.training_step(net, images, images.argmax(1)[:, 0, 0])
    step()
    ceiling.captured(net, images)
    step()
    in_rounds(
        lambda name: 1e3 * num / ceiling.milliseconds(step), end, partial(write, found, "one process, network alone")
    )


if __name__ == "__main__":
    main()
