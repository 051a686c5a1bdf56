"""`imagenet-opt check`: what is wrong with a data set, before a training run finds out."""

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from imagenet_opt.cli.arguments import Parser, check_writable
from imagenet_opt.errors import ConfigError, printable

if TYPE_CHECKING:
    from imagenet_opt.check.result import Verdict

HELP = """Look over a data set before hours of training do: classes, counts, bad files, duplicates, wrong labels.

imagenet-opt check data.root=/fsx/imagenet
imagenet-opt check data.root=/fsx/imagenet ckpt=RUN_FOLDER           does a trained network agree with val's folders?
imagenet-opt check data.root=/fsx/imagenet --all --json check.json

  ckpt=PATH     a checkpoint that train.py wrote with these classes, or a run's folder, of which it takes last.ckpt
  --sample N    samples of each split that are decoded, compared and shown to the network, of all classes alike
                (default 2000)
  --all         all of them
  --json FILE   write everything that was found

Any override of train.py may be added, such as data.val_folder=valid or data.num_workers=8.

What is looked at:
  classes      the same folders in train and val; which are empty
  counts       images a class. 1000 classes, or names as n01440764, are judged as ImageNet: 1,281,167 and 50,000 images,
               732 to 1300 and 50 a class; others by tiny classes and imbalance
  files        empty ones, of all (not of shards, whose index knows); on Lustre those whose data is still in S3
  decoding     bad files, files that are cut short, and which are not RGB
  duplicates   validation images, byte for byte, that train has too, or val in another class
  GPU memory   what a training step needs, computed for the configured network, images and batch; a warning where it
               is more than 90 % of the memory of this machine's GPU
  labels       with ckpt: accuracy on train and on val, both by centre crops. A network that knows train and is near
               chance on val, but gives all images of a folder the same answer, has met folders with wrong names. Single
               wrong folders show with five images a class and more: --sample 5000. The five worst classes are named

For all files their size is asked, which takes minutes where storage is slow. Status: 0 without errors, though there may
be warnings; 1 with errors; 2 where it could not look at all."""

_SHOWN = 5
"""Details of a warning or an error that are printed; a file gets all."""
_COLOURS = {"ok": "green", "info": "cyan", "warning": "yellow", "error": "bold red"}


@dataclass(frozen=True)
class Options:
    """What the command line says. sample: None for all."""

    overrides: tuple[str, ...] = ()
    ckpt: Path | None = None
    sample: int | None = 2000
    json: Path | None = None


def main(argv: list[str]) -> None:
    """Exits with status 1 where anything is an error."""
    if {"--help", "-h"} & set(argv):
        print(HELP)
        return
    options = parse(argv)
    from imagenet_opt.check.dataset import check

    verdicts, labels = check(options.overrides, ckpt=options.ckpt, num_samples=options.sample)
    show(verdicts)
    if labels is not None:
        show_worst(labels["classes"])
    if options.json is not None:
        found = {"command": ["imagenet-opt", "check", *argv], "verdicts": list(map(asdict, verdicts)), "labels": labels}
        options.json.write_text(json.dumps(found, indent=1))
    if any(verdict.level == "error" for verdict in verdicts):
        sys.exit(1)


def parse(argv: list[str]) -> Options:
    """Raises ConfigError for what is unknown or does not fit."""
    parser = Parser("check")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--sample", type=int)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--json", type=Path)
    found = parser.parse_intermixed_args(argv)
    if found.sample is not None and (found.all or found.sample < 1):
        raise ConfigError(f"--sample {found.sample} must be at least 1, and is not said together with --all")
    if found.json is not None:
        check_writable(found.json)
    given = [word for word in found.overrides if word.startswith("ckpt=")]
    ckpt = Path(given[-1].removeprefix("ckpt=")).expanduser() if given else None
    if ckpt == Path():
        raise ConfigError("ckpt has no value; expected ckpt=RUN_FOLDER or ckpt=FILE")
    return Options(
        overrides=tuple(word for word in found.overrides if word not in given),
        ckpt=ckpt / "last.ckpt" if ckpt is not None and ckpt.is_dir() else ckpt,
        sample=None if found.all else found.sample or Options.sample,
        json=found.json,
    )


def show_worst(classes: dict[str, dict[str, float | None]]) -> None:
    """Classes that the network knows least on val. classes: accuracy on train and val by name; None without images."""
    known = [(shares["val"], shares["train"], name) for name, shares in classes.items() if shares["val"] is not None]
    print("worst classes of val, as the network sees them:")
    for val, train, name in sorted(known, key=lambda one: (one[0], -(one[1] or 0.0)))[:_SHOWN]:
        of_train = "no image" if train is None else f"{100 * train:.0f} %"
        print(f"  {printable(name)}: right on {100 * val:.0f} % of val, {of_train} of train")


def show(verdicts: "list[Verdict]") -> None:
    """As a table, and below it the files and classes that it speaks of."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from imagenet_opt.display.terminal_table import terminal

    console = terminal(120)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("check", "", "found"):
        table.add_column(name, overflow="fold", no_wrap=name == "")
    for verdict in verdicts:
        level = Text(verdict.level, style=_COLOURS[verdict.level])
        table.add_row(printable(verdict.check), level, printable(verdict.text))
    console.print(table)
    for verdict in verdicts:
        if verdict.details and verdict.level != "info":
            console.print(f"{verdict.check}:")
            for line in verdict.details[:_SHOWN]:
                console.print(f"  {printable(line)}", soft_wrap=True)
            if more := verdict.details[_SHOWN:]:
                console.print(f"  and {len(more)} more (--json FILE has all)")
    worst = {level: sum(verdict.level == level for verdict in verdicts) for level in ("error", "warning")}
    console.print(", ".join(f"{num} {level}{'s' * (num != 1)}" for level, num in worst.items()))
