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
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, stdev
from typing import Any

KEEP = Path(os.environ["KEEP"])
ROWS, RATE = 3, "throughput/images_per_second"
OVERRIDES = (
    "experiment=aggressive $DATA data.prefetch_factor=2 data.batch_size=128 callbacks.acceleration.compile=false "
    "callbacks.acceleration.cuda_graph=true trainer.max_steps=100 trainer.max_epochs=1 trainer.limit_val_batches=0"
)


def whole_run(name: str) -> float:
    """Images per second of a run in this process."""
    from tests.gpu.fits import fit, words_of

    return float(fit(words_of(OVERRIDES), KEEP / name)[0][RATE])


def in_rounds(turn: Callable[[str], float], seconds: float) -> dict[str, Any]:
    """Rounds until the time is over, but two at least."""
    rounds: list[list[float]] = []
    turns: list[float] = []
    end = time.perf_counter() + seconds
    while len(rounds) < 2 or time.perf_counter() + ROWS * turns[-1] < end:
        rates = [0.0] * ROWS
        for i in range(ROWS):
            row, began = (i + len(rounds)) % ROWS, time.perf_counter()
            rates[row] = turn(f"row{row}_{len(rounds)}")
            turns.append(time.perf_counter() - began)
        rounds.append(rates)
        print(rates, flush=True)
    ratios = [math.log(rates[row] / rates[0]) for rates in rounds for row in range(1, ROWS)]
    found = {"deviation_of_ratio": stdev(ratios), "seconds_of_turn": mean(turns[1:]), "first_turn": turns[0]}
    return found | {"rounds": rounds}


def main() -> None:
    seconds, began = float(os.environ["JOB_SECONDS"]), time.perf_counter()
    context: Any = get_context("forkserver")
    context.set_forkserver_preload(["tests.gpu.fits"])  # its imports are needed once
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as fresh:
        found = {
            "fresh processes, whole runs": in_rounds(lambda name: fresh.submit(whole_run, name).result(), seconds - 60)
        }
    (KEEP / "result.json").write_text(json.dumps(found, indent=1))
    import torch

    from tests.gpu.ceiling import DEVICE, captured, images_of, milliseconds, network, training_step

    net, images = network(), images_of(128)
    step = training_step(net, images, torch.randint(1000, (128,), device=DEVICE))
    step()
    captured(net, images)
    step()
    left = min(20.0, began + seconds - 10 - time.perf_counter())
    found["one process, network alone"] = in_rounds(lambda name: 128e3 / milliseconds(step), left)
    (KEEP / "result.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
