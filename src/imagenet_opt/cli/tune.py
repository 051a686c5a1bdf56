"""`imagenet-opt tune`: finds by measurement which settings are the fastest here."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from imagenet_opt.cli.arguments import Parser, budget_seconds, check_writable
from imagenet_opt.config.experiment_file import check_writable_experiments
from imagenet_opt.probe.measuring import begin_measuring

HELP = """Which settings are the fastest here? Measured within a time, and kept only where they are faster beyond noise.

imagenet-opt tune data.root=/fsx/imagenet                           any override of train.py may be added
imagenet-opt tune data.root=/fsx/imagenet +experiment=aggressive    starts from that experiment
imagenet-opt tune data.root=/fsx/imagenet rehearse=a10g             the loader only, for a simulated GPU

  --budget TIME  of all measurements together, such as 90s or 20m (default 10m); what there is no time for is
                 listed as not tried
  --json FILE    write everything that was measured

In this order, each with what was found before:
  the device alone, on random images that stay there: precision, channels_last, then ways to compile (on GPUs also
    reduce-overhead, max-autotune and a CUDA graph, compiled or not). All have a short turn, the better half a
    longer one; a change is kept when the 95 % interval of its gain, from four turns (five where several were
    compared), lies above 1. What cannot be compiled in the time is left out.
  batch size: the largest that fits at the largest resolution of the run, three steps in a process of its own,
    with 10 % of the free memory left. Where the configured batch does not fit, model.micro_batch_size keeps
    it; a larger one is taken only if it is faster. The learning rate follows: it is stated per 256 images.
  the loader alone: num_workers, prefetch_factor, reads_in_flight, until it gives 1.2 times what the device takes,
    or nothing brings 3 % more. Files are dropped from the page cache first, where that is allowed.

The result goes to conf/experiment/tuned_<host>_tune.yaml, with what was measured in its header. The data set is only
read. Several GPUs: it tunes one process, with its share of the CPUs; train.py multiplies.

The batch size alone, each time a run begins: python train.py data.batch_size=auto"""

_BUDGET = "10m"


@dataclass(frozen=True)
class Options:
    """What the command line says. json: None for no file."""

    overrides: tuple[str, ...]
    budget_seconds: float
    json: Path | None


def main(argv: list[str]) -> None:
    if {"--help", "-h"} & set(argv):
        print(HELP)
        return
    options = parse(argv)
    check_writable_experiments()
    begin_measuring()
    command = shlex.join(["imagenet-opt", "tune", *argv])
    from imagenet_opt.display.terminal_table import about
    from imagenet_opt.tune.outputs import print_tuning, sheets_of, write_experiment, write_json
    from imagenet_opt.tune.tuner import tune

    facts = about(command)
    found = tune(options.overrides, options.budget_seconds)
    sheets = sheets_of(found)
    print_tuning(found, sheets)
    write_experiment(found, sheets, command, options.overrides)
    if options.json is not None:
        write_json(found, sheets, facts, options.budget_seconds, options.json)


def parse(argv: list[str]) -> Options:
    """Raises ConfigError for what is unknown or does not fit."""
    parser = Parser("tune")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--budget", default=_BUDGET)
    parser.add_argument("--json", type=Path)
    found = parser.parse_intermixed_args(argv)
    if found.json is not None:
        check_writable(found.json)
    return Options(tuple(found.overrides), budget_seconds(found.budget), found.json)
