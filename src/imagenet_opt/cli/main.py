"""`imagenet-opt`: all commands but training. The module imports a command's module only when the command runs."""

import logging
import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

from imagenet_opt import __doc__ as purpose
from imagenet_opt import __version__
from imagenet_opt.errors import ConfigError, did_you_mean

FIRST = (
    ("train", "the demo: two minutes, no data set and no GPU needed"),
    ("train experiment=aggressive data.root=FOLDER", "ResNet-50 on your images"),
    ("doctor data.root=FOLDER", "why does the GPU wait for data?"),
    ("plan experiment=rn50_ffcv data.root=FOLDER", "what does this recipe cost, how accurate is it?"),
    ("study data.root=FOLDER", "what is each optimisation worth on this machine?"),
)
"""What most users come for: a command line, and what it answers."""
COMMANDS = {
    "train": ("imagenet_opt.cli.train", "train a network: the same as python train.py"),
    "plan": ("imagenet_opt.cli.plan", "show what a run will do and cost before it starts"),
    "study": ("imagenet_opt.cli.study", "measure what each optimisation is worth here, and that nothing broke"),
    "doctor": ("imagenet_opt.cli.doctor", "find by experiment why the GPU waits, and how to fix it"),
    "diagnose": ("imagenet_opt.cli.diagnose", "find by experiment what limits the loop of your own training script"),
    "tune": ("imagenet_opt.cli.tune", "find by measurement which settings are the fastest here"),
    "check": ("imagenet_opt.cli.check", "look over a data set before training: counts, bad files, duplicates, labels"),
    "hydrate": ("imagenet_opt.cli.hydrate", "read every file of a lazy mount once, so that training finds them there"),
    "pack": ("imagenet_opt.cli.pack", "write a data set as tar shards, which read fast from any storage"),
    "bench": ("imagenet_opt.cli.bench", "measure the input pipeline alone, and compare it with other loaders"),
    "report": ("imagenet_opt.cli.report", "write one page that shows where the time of a run goes"),
    "evaluate": ("imagenet_opt.cli.evaluate", "measure the accuracy of a trained network, as it or others evaluate"),
    "export": ("imagenet_opt.cli.export", "write a trained network as safetensors or ONNX, and check the file"),
    "init": ("imagenet_opt.cli.init", "write a small project of your own that uses this package"),
    "dashboard": ("imagenet_opt.cli.dashboard", "lay out the charts of a project in Weights & Biases"),
}
"""Command -> its module, which has `HELP` and `main(argv)`, and its purpose."""


def main() -> None:
    """Entry point of the console script. Exits with status 2 after a mistake of the user."""
    name, *argv = sys.argv[1:] or ["--help"]
    with quiet_pipe():
        if name in ("--help", "-h", "help"):
            print(usage())
        elif name == "--version":
            print(f"imagenet-opt {__version__}")
        else:
            from imagenet_opt.cli.mistakes import report_mistakes

            report_mistakes(lambda: run(name, argv))


@contextmanager
def quiet_pipe() -> Iterator[None]:
    """End with status 141, without a word, if the reader of stdout is gone, as in `imagenet-opt plan | head`."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        if not _stdout_is_closed():
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python writes there once more as it ends
        sys.exit(128 + signal.SIGPIPE)


def _stdout_is_closed() -> bool:
    """Whether nobody reads the pipe any more, so that no other broken pipe is taken for it."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def run(name: str, argv: list[str]) -> None:
    """Run a command, or print its help. Raises ConfigError, with similar names, for an unknown command."""
    if name not in COMMANDS:
        hint = did_you_mean(name, COMMANDS, "imagenet-opt --help lists the commands")
        raise ConfigError(f"there is no command {name}; {hint}")
    command = import_module(COMMANDS[name][0])
    if command.HELP and {"--help", "-h"} & set(argv):
        print(command.HELP)
    elif name == "train":  # Hydra sets up the log of a run
        command.main(argv)
    else:
        with _index_messages():
            command.main(argv)


@contextmanager
def _index_messages() -> Iterator[None]:
    """Print on stderr what the modules that open a data set log: when a URL was listed, progress, and waiting."""
    logger, handler = logging.getLogger("imagenet_opt.data"), logging.StreamHandler(sys.stderr)
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def usage() -> str:
    first = "\n".join(f"imagenet-opt {words}\n    {answer}" for words, answer in FIRST)
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:{width}}  {what}" for name, (_, what) in COMMANDS.items())
    return f"""{purpose}

{first}

{commands}

imagenet-opt COMMAND --help explains one."""


if __name__ == "__main__":
    main()
