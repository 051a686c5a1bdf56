"""`imagenet-opt report`: shows where the time of a run goes, on the terminal and in an HTML file."""

import argparse
from pathlib import Path

from imagenet_opt.cli.arguments import Parser, write_file
from imagenet_opt.display.printable import printable
from imagenet_opt.errors import ConfigError

HELP = """Show where the time of a run goes: in short here, and in full in one HTML file, which opens without a network.

imagenet-opt report runs/mine                              runs/mine/report.html
imagenet-opt report runs/mine --baseline runs/before       and the differences from another run
imagenet-opt report doctor.json --out why.html             the result of imagenet-opt doctor
imagenet-opt report --verify runs/mine                     does its record.json agree with itself and with the run?

  RUN                   a folder that train.py wrote, or a doctor.json, or a folder with one
  --baseline RUN2       another run to compare with
  --out FILE            default: report.html beside the run's files
  --verify              of a run folder or a record.json: compare steps, samples, hours, dollars and images/s, the
                        accuracy and the counts of imagenet-opt evaluate, and the files of the run that are there
                        (configuration, checkpoints, metrics.csv); write nothing. Exit status 2 if something contradicts

The report has every part for which there is data; for each other part, a line says how to create its data. The
verdict comes from imagenet-opt doctor ... --json RUN/doctor.json. docs/report.md explains the report."""

FILE = "report.html"


def main(argv: list[str]) -> None:
    options = parse(argv)
    if options.verify:
        _verify(options.run)
        return
    from imagenet_opt.display.terminal_table import terminal
    from imagenet_opt.report.numbers import print_summary
    from imagenet_opt.report.page import render
    from imagenet_opt.report.run_files import read_run

    record = read_run(options.run)
    baseline = read_run(options.baseline) if options.baseline else None
    page = render(record, baseline)
    page = page.encode(errors="backslashreplace").decode()  # names of files may hold what no encoding takes
    write_file(options.out, lambda: page, "--out")
    print_summary(record, baseline, terminal())
    print(printable(f"wrote {options.out} ({len(page) / 1e6:.1f} MB)"))


def _verify(place: Path) -> None:
    from imagenet_opt.display.terminal_table import print_sentence
    from imagenet_opt.report.verify import verify

    sentence, absent = verify(place)
    print_sentence(sentence)
    if absent:
        print_sentence(f"Not compared: {'; '.join(absent)}.")


def parse(argv: list[str]) -> argparse.Namespace:
    """Parse the command line. Raises ConfigError for unknown options and unsuitable values."""
    parser = Parser("report", overrides=False)
    parser.add_argument("run", metavar="RUN", type=Path)
    parser.add_argument("--baseline", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--verify", action="store_true")
    options = parser.parse_args(argv)
    if options.verify and (options.baseline or options.out):
        raise ConfigError("--verify writes no page; leave out --baseline and --out")
    for flag, place in (("", options.run), ("--baseline ", options.baseline)):
        if place is not None and not place.exists():
            raise ConfigError(f"{flag}{place}: there is no such folder or file; expected a run folder or a doctor.json")
    options.out = options.out or (options.run if options.run.is_dir() else options.run.parent) / FILE
    return options
