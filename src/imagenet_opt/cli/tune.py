"""`imagenet-opt tune`: finds the fastest settings of this machine by measurement."""

import shlex
from argparse import Namespace

from imagenet_opt.cli.arguments import Parser, budget_seconds, new_file, write_outputs
from imagenet_opt.config.experiment_file import check_writable_experiments
from imagenet_opt.probe.isolated import begin_measuring

HELP = """Find the fastest settings of this machine within a time budget; keep only those that are faster beyond noise.

imagenet-opt tune data.root=/fsx/imagenet                           any override of train.py may be added
imagenet-opt tune data.root=/fsx/imagenet experiment=aggressive     starts from that experiment
imagenet-opt tune data.root=/fsx/imagenet rehearse=a10g             the loader only, for a simulated GPU

  --budget TIME  for all measurements together, such as 90s or 20m (default 20m); settings for which there is no
                 time are listed as not tried
  --json FILE    write all measurements
  --page FILE    write an HTML page with a chart, which opens without a network

It tunes the device alone (precision, channels_last, ways to compile), then the batch size, as long as more images fit
and are faster, then the loader alone (workers, batches ahead, reads in flight), each part with the results of the parts
before; docs/tuning.md has each setting. The learning rate scales with the batch: it is set per 256 images.

The result is written to conf/experiment/tuned_<host>_tune.yaml, with the measurements in its header. The data set is
only read. With several GPUs, one process is tuned, with its share of the CPUs; the settings hold for each process.

The largest batch that fits, whenever a run begins: imagenet-opt train data.batch_size=auto"""


def main(argv: list[str]) -> None:
    options = parse(argv)
    check_writable_experiments()
    begin_measuring()
    from imagenet_opt.config.compose import composed
    from imagenet_opt.config.dataset import check_folders

    config = composed(tuple(options.overrides), check_folders)
    from imagenet_opt.display.terminal_table import about
    from imagenet_opt.tuning.outputs import as_json, page, print_tuning, write_experiment
    from imagenet_opt.tuning.tuner import tune

    facts = about(shlex.join(["imagenet-opt", "tune", *argv]))
    tuning = tune(config, tuple(options.overrides), options.budget)
    print_tuning(tuning)
    write_experiment(tuning, facts, options.overrides)
    write_outputs(options, lambda: as_json(tuning, facts), lambda: page(tuning, facts))


def parse(argv: list[str]) -> Namespace:
    """Parse the command line. Raises ConfigError for unknown options and unsuitable values."""
    parser = Parser("tune")
    parser.add_argument("--budget", type=budget_seconds, default="20m")
    parser.add_argument("--json", type=new_file)
    parser.add_argument("--page", type=new_file)
    return parser.parse_intermixed_args(argv)
