"""`imagenet-opt diagnose`: finds by experiment what limits the loop of any training script."""

import sys
from argparse import Namespace
from itertools import islice
from pathlib import Path

from imagenet_opt.cli.arguments import Parser, between, new_file, write_file
from imagenet_opt.diagnosis.measurements import LEAST_SECONDS
from imagenet_opt.errors import ConfigError

HELP = """Why is the GPU idle in my own script? Runs it unchanged, and makes its first training loop the experiments.

imagenet-opt diagnose train.py --epochs 90 --lr 0.1              the script and its arguments
imagenet-opt diagnose train.py --json diagnosis.json --seconds 90
imagenet-opt diagnose --json diagnosis.json -- train.py --json x     after --, all words are the script's

  --seconds N    time for the experiments (default 60, from 5), after the script has reached its loop; slow steps and
                 loaders take up to three times as long
  --json FILE    write the verdict and all measurements

The first loop over a torch DataLoader that trains is measured as it is, with a batch that is kept, and without a step;
the DataLoader is taken apart, and other settings of it are tried in turns with the present ones. The verdict is a cause
(storage, decode, few_workers, collate, copy, host_sync, launches; training: the step is the limit; none: balanced), the
gain of the remedy as an interval, the evidence, and what is unknown. Trainers of Lightning and timm work too.

The script is ended after the experiments, with all processes that it has started. Its weights are not to be used, since
it has trained on one batch again and again; checkpoints, logs and other files that it wrote until then are its own.
What it prints goes to stderr. A loop that is no DataLoader: imagenet_opt.diagnose(loader, step) (docs/diagnose.md).
Exit status: 0; 1 if the script ended before the experiments did; 2 if nothing could be measured."""


def main(argv: list[str]) -> None:
    options = parse(argv)
    from imagenet_opt.diagnosis.script import diagnose_script
    from imagenet_opt.display.terminal_table import terminal
    from imagenet_opt.probe.isolated import end_like_an_error

    end_like_an_error()
    diagnosis = diagnose_script(options.script, options.arguments, seconds=options.seconds)
    terminal().print(diagnosis.panel())
    print(f"{options.script} was ended: do not use its weights; files that it wrote, such as checkpoints, are its own")
    write_file(options.json, diagnosis.as_json)
    if diagnosis.measured.ended:
        sys.exit(1)


def parse(argv: list[str]) -> Namespace:
    """Parse the command line; words that are no options of ours go to the script. Raises ConfigError for a script that
    does not exist."""
    parser, ours, others = Parser("diagnose", overrides=False), list[str](), list[str]()
    parser.add_argument("--seconds", type=between(LEAST_SECONDS, 3600), default=60.0)
    parser.add_argument("--json", type=new_file)
    words = iter(argv)
    for word in words:
        if word == "--":
            others += words
        elif word.partition("=")[0] in ("--seconds", "--json"):
            ours += [word] if "=" in word else [word, *islice(words, 1)]
        else:
            others.append(word)
    options = parser.parse_args(ours)
    script, *options.arguments = others or [""]
    options.script = Path(script)
    if not options.script.is_file():
        found = f"there is no script {script}" if script else "no script is named"
        if script.startswith("-"):
            found = f"{script} is neither --seconds nor --json; options of the script stand behind it"
        raise ConfigError(f"{found}; expected imagenet-opt diagnose SCRIPT [ARGUMENTS] (imagenet-opt diagnose --help)")
    return options
