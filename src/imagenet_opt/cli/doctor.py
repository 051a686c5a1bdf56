"""`imagenet-opt doctor`: finds by experiment why the GPU waits, and how to fix it."""

import shlex
import sys
from argparse import Namespace
from dataclasses import replace
from typing import TYPE_CHECKING

from imagenet_opt.cli.arguments import Parser, budget_seconds, new_file, write_file
from imagenet_opt.probe.isolated import begin_measuring

if TYPE_CHECKING:  # slow imports wait until the arguments are checked
    from omegaconf import DictConfig

    from imagenet_opt.doctor.diagnosis import Diagnosis

HELP = """Why does the GPU wait? Measures each stage alone and all together, and answers in one sentence with evidence.

imagenet-opt doctor data.root=/fsx/imagenet                          any override of train.py may be added
imagenet-opt doctor data.root=/fsx/imagenet experiment=aggressive    as that experiment would train
imagenet-opt doctor data.root=/fsx/imagenet rehearse=a10g            with a simulated GPU, on a machine without one
imagenet-opt doctor data.root=/fsx/imagenet --apply                  tries the remedy, and keeps it if it helps

  --budget TIME  time for all experiments together, such as 60s or 5m (default 90s), after about 20 s to start them;
                 slow storage, large batches and a network on the CPU take up to 4 times as long, because each
                 experiment needs a few batches
  --json FILE    write the verdict and all measurements; imagenet-opt report FILE shows them as a page
  --apply        measure full runs with and without the overrides of the verdict; print the measured gain beside the
                 predicted gain; if the run becomes faster, write the overrides to
                 conf/experiment/tuned_<host>_doctor.yaml
  --record-profile  measure this GPU alone and write it to conf/rehearse/<name>.yaml, for rehearse=<name> elsewhere;
                 add the overrides that will train, such as experiment=NAME: compile, CUDA graph, precision and batch
                 decide the rate

It measures each stage alone: the GPU, the loader, decoding, reading, the copy to the GPU; and the real trainer, with
your callbacks and loggers. A run should be as fast as the slowest of these stages; if the run is slower, the doctor
looks for the reason in the training process (docs/doctor.md).
Exit status: 0; 1 if an experiment failed that the verdict needs; 2 if nothing could be measured.

The data set is only read. No checkpoint, log or W&B run is left behind. Files are dropped from the page cache one by
one, so other runs on the same files read them from storage again."""


_TURNS = 18
"""Each run of --apply takes the budget divided by this number: 5 s with the default budget."""


def main(argv: list[str]) -> None:
    options = parse(argv)
    begin_measuring()
    from imagenet_opt.config.compose import composed
    from imagenet_opt.config.dataset import check_folders

    config = composed(tuple(options.overrides), check_folders)
    from imagenet_opt.doctor.apply import apply
    from imagenet_opt.doctor.diagnosis_file import as_json
    from imagenet_opt.doctor.gpu_profile import record_profile

    if options.record_profile:
        record_profile(config, seconds=options.budget)
        return
    diagnosis = examine(config, options.budget, shlex.join(["imagenet-opt", "doctor", *argv]))
    write_file(options.json, lambda: as_json(diagnosis))
    if options.apply:
        trial = apply(diagnosis, tuple(options.overrides), seconds=options.budget / _TURNS)
        if trial is not None:
            write_file(options.json, lambda: as_json(replace(diagnosis, trial=trial)))
    if not diagnosis.is_judged:
        sys.exit(1)


def parse(argv: list[str]) -> Namespace:
    """Parse the command line; budget in seconds. Raises ConfigError for unknown options and unsuitable values."""
    parser = Parser("doctor")
    parser.add_argument("--budget", type=budget_seconds, default="90s")
    parser.add_argument("--json", type=new_file)
    parser.add_argument("--apply", action="store_true")
    parser.add_argument("--record-profile", action="store_true")
    return parser.parse_intermixed_args(argv)


def examine(config: "DictConfig", budget_seconds: float, command: str) -> "Diagnosis":
    """Run all experiments with a progress bar and print the verdict. Raises ImagenetOptError without a verdict."""
    import torch
    from lightning.pytorch import seed_everything

    from imagenet_opt.display.progress import announced
    from imagenet_opt.display.terminal_table import terminal
    from imagenet_opt.doctor.causes import judge
    from imagenet_opt.doctor.examination import Examination, planned_seconds
    from imagenet_opt.doctor.terminal_view import print_diagnosis
    from imagenet_opt.probe.testbed import Testbed
    from imagenet_opt.training.quiet import quiet

    quiet()
    if not torch.cuda.is_available() and "rehearsal" not in config.callbacks:
        print("no GPU here: the network runs on the CPU; rehearse=a10g simulates one instead", file=sys.stderr)
    seed_everything(config.seed, verbose=False)
    planned = planned_seconds(budget_seconds)
    with announced(len(planned), budget_seconds=sum(planned)) as announce:
        examination = Examination(Testbed(config), budget_seconds=budget_seconds, announce=announce)
        diagnosis = judge(examination.evidence(command=command))
    print_diagnosis(diagnosis, terminal())
    return diagnosis
