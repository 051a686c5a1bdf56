"""`imagenet-opt study`: measures the gain of each optimisation on this machine, and whether it changes the loss."""

import shlex
import sys
from argparse import Namespace
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from imagenet_opt.cli.arguments import Parser, between, budget_seconds, write_file
from imagenet_opt.config.compose import composed
from imagenet_opt.config.dataset import check_folders
from imagenet_opt.config.overrides import last_value, without
from imagenet_opt.display.table import Table, how_to_decide
from imagenet_opt.errors import ConfigError
from imagenet_opt.probe.isolated import begin_measuring
from imagenet_opt.study.file import DEFAULT_ROUNDS, FLAGS, ReadFile, Request, StepsFile, StudyFile, read_study

HELP = """Measure the gain of each optimisation on this machine, side by side, with intervals.

imagenet-opt study data.root=/fsx/imagenet experiment=aggressive     any override of train.py may be added
imagenet-opt study study=leave_one_out data.root=/fsx/imagenet       all on, minus each of them
imagenet-opt study study=read study.num_workers=[4,8]                study.KEY: any key of the study's file
imagenet-opt study study=mine.yaml data.root=/fsx/imagenet           a study of your own, see docs/studying.md

  study=ladder         each optimisation on top of those before it (default)
  study=leave_one_out  all on, minus each of them
  study=checklist      each of them alone, including those that seldom help
  study=scaling        1, 2, 4 processes or GPUs
  study=read           workers x batch x reads in flight, from storage

  --budget TIME       of steps: time for measuring speeds, from 10s to 24h, such as 90m. All rows have four rounds,
                      and more as long as the time is enough (default: four rounds)
  --repeats R         rounds of all rows, 2 to 1000 (default 5, of steps 4)
  --seconds S         of each timed stretch (default 8, of steps without --repeats 3)
  --parity STEPS      of steps: train each row for STEPS steps and compare the loss (default 200; 0: no check)
  --folder FOLDER     for study.md, study.html, study.json and what was measured (default runs/study_NAME)
  --apply             of steps: write the steps that were faster with the same loss to
                      conf/experiment/tuned_<host>_study.yaml

Each row and round is a process of its own: some seconds on a CPU, about 40 s on a GPU, more with compile: the ladder
takes about an hour there. Stopped? Run the same command again; it resumes. A verdict is faster, slower, no difference
(within 3 %) or undecided. To decide more, run the command once more with the --budget that the output names, or with
more --repeats. Without a GPU, rows that need a GPU are left out (docs/studying.md)."""

DEFAULTS = {"seconds": 8.0, "parity": 200, "apply": False}
SECONDS_OF_STEPS = 3.0


def main(argv: list[str]) -> None:
    request = parse(argv)
    begin_measuring()
    composed(request.overrides, check_folders)
    from imagenet_opt.display.terminal_table import about, print_tables
    from imagenet_opt.training.folder_lock import lock_folder
    from imagenet_opt.training.quiet import quiet

    quiet()
    lock_folder(request.folder, wait_seconds=0, remedy="--folder FOLDER")
    facts = about(request.command)
    tables = tables_of(request)
    print_tables(tables)
    write_outputs(tables, request, facts)


def parse(argv: list[str]) -> Request:
    """Parse the command line. Raises ConfigError for unknown options and unsuitable values."""
    parser = Parser("study")
    parser.add_argument("--repeats", type=between(2, 1000))
    parser.add_argument("--budget", type=budget_seconds)
    parser.add_argument("--seconds", type=between(0.1, 3600))
    parser.add_argument("--parity", type=between(0, 1_000_000))
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--apply", action="store_true", default=None)
    arguments = parser.parse_intermixed_args(argv)
    if arguments.budget is not None and arguments.repeats is not None:
        raise ConfigError("--budget and --repeats both set how long to measure; use one of them")
    if arguments.apply and arguments.parity == 0:
        raise ConfigError("--apply keeps steps whose loss was compared: give --parity STEPS above 0, or leave it out")
    words = arguments.overrides
    for word in words:
        if "=" not in word and not word.startswith("~"):
            raise ConfigError(f"{word}: expected KEY=VALUE; did you mean study={word}?")
    name = last_value(words, "study") or "ladder"
    file = read_study(name, [word.removeprefix("study.") for word in words if word.startswith("study.")])
    flags = _flags(arguments, name, file)
    return Request(
        name=name,
        file=file,
        overrides=tuple(without(words, "study")),
        repeats=flags["repeats"],
        budget_seconds=flags["budget_seconds"],
        seconds=flags["seconds"],
        parity_steps=flags["parity"],
        apply=flags["apply"],
        folder=arguments.folder or Path("runs", f"study_{Path(name).stem}"),
        command=shlex.join(["imagenet-opt", "study", *argv]),
    )


def _flags(arguments: Namespace, study: str, file: StudyFile) -> dict[str, Any]:
    """Values of all FLAGS. Raises ConfigError for a flag that studies of this kind do not have."""
    typed = {name: value for name in FLAGS if (value := getattr(arguments, name)) is not None}
    if unknown := [f"--{name}" for name in typed if name not in file.flags]:
        accepted = " and ".join(f"--{name}" for name in file.flags)
        raise ConfigError(f"{unknown[0]} has no effect in study={study} (kind: {file.kind}), which takes {accepted}")
    is_open = isinstance(file, StepsFile) and "repeats" not in typed
    lengths = {"seconds": SECONDS_OF_STEPS, "repeats": None} if is_open else {"repeats": DEFAULT_ROUNDS}
    return DEFAULTS | lengths | {"budget_seconds": typed.pop("budget", 0.0)} | typed


def tables_of(request: Request) -> list[Table]:
    """Run the study and return its tables. Raises ImagenetOptError."""
    from imagenet_opt.study import read_speed, scaling, steps

    file = request.file
    if isinstance(file, StepsFile):
        return steps.run(file, request)
    table = read_speed.run(file, request) if isinstance(file, ReadFile) else scaling.run(file, request)
    return [how_to_decide(table)]


def write_outputs(tables: list[Table], request: Request, facts: dict[str, Any]) -> None:
    """Write study.md, study.html and study.json into the study's folder. Raises ConfigError."""
    from imagenet_opt.display.page import page_of_tables
    from imagenet_opt.display.terminal_table import about_texts, strict_json

    texts, command, title = about_texts(facts), facts["command"], request.file.title
    lengths = {"study": request.name, "repeats": request.repeats, "seconds": request.seconds}
    lengths |= {"budget_seconds": request.budget_seconds} if request.budget_seconds else {}
    numbers = lengths | facts | {"tables": [asdict(table) for table in tables]}
    head = f"## {title}\n\n{', '.join(texts.values())}\n\n    {command}\n\n"
    write = partial(write_file, flag="--folder")
    write(request.folder / "study.md", lambda: head + "\n".join(table.markdown() for table in tables))
    write(request.folder / "study.json", lambda: strict_json(numbers))
    write(request.folder / "study.html", lambda: page_of_tables(title, title, tables, about=texts, command=command))
    print(f"{request.folder}/study.html has the plots, study.md and study.json the numbers", file=sys.stderr)
