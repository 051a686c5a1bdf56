"""`imagenet-opt bench`: measures the loader alone, compared with other loaders and with the limit of the decoder."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from imagenet_opt.bench.peers import PEERS
from imagenet_opt.cli.arguments import Parser, check_writable
from imagenet_opt.errors import ConfigError, did_you_mean

if TYPE_CHECKING:  # what takes seconds to import waits until the arguments are right
    from imagenet_opt.bench.report import Report

HELP = f"""How many images a second does the input pipeline give here, with no network behind it, and what limits it?

imagenet-opt bench data.root=/fsx/imagenet                   files, packed shards or a URL; without it the demo's
imagenet-opt bench data.root=/fsx/imagenet --against all     beside other loaders, on the same files
imagenet-opt bench data.root=/fsx/imagenet data.added_latency_ms=100     as on slow storage

Any override of train.py may be added: data.batch_size=384 data.num_workers=8 data.image_size=160 experiment=aggressive

  --batches N    batches timed in a turn, after a warm-up that is discarded (default 20)
  --repeats R    turns of each row (default 6, the fewest that give a median a 95 % interval)
  --against A,B  other loaders: {", ".join(PEERS)}; or all
  --same-bytes   encode all files again as JPEGs of quality 90, once, and let every loader read these; FFCV's own
                 file has this quality, so its rate is compared on equal bytes
  --json FILE    write everything that was measured
  --page FILE    write an HTML page with a chart, which opens without a network

Rows: `worker resize` hands over uint8 images of one size, as other loaders do; `region decode` hands over crops for the
GPU to resize, as training with a GPU does; `nvImageCodec alone` is the decoder's limit: such crops from memory, in as
many processes. data.resize_on=worker or device leaves one of ours; auto shows both, but on a machine with a GPU and
without --against only `region decode`, and then with the copy to the GPU. data.region_decode=false is for `worker
resize` alone, which then decodes whole pictures.

Reading it: a GPU that trains more images a second than `region decode` gives will wait. The table below the rows says
for what a worker spends its time: `decodes` is the CPUs'. All files are read into memory first, at most 20,000 of them,
so that all rows and rounds read the same way; the output says if they did not stay there. How fast the storage is, says
imagenet-opt doctor; data.added_latency_ms simulates one.

Each turn is a process of its own, and the rows take turns: about ten seconds a turn and more, so a minute a row.
Start-up and warm-up are left out of every rate. Each loader has data.num_workers workers or threads. For a loader with
a file format of its own the files are converted once, into data.cache_dir. Nothing else is written; the data set is
only read."""

LIMITS = {"batches": 100_000, "repeats": 1000}


@dataclass(frozen=True)
class Options:
    """Options of the command line. json, page: None for no file."""

    overrides: tuple[str, ...] = ()
    batches: int = 20
    repeats: int = 6
    against: tuple[str, ...] = ()
    same_bytes: bool = False
    json: Path | None = None
    page: Path | None = None


def main(argv: list[str]) -> None:
    options = parse(argv)
    report = bench(options)
    from imagenet_opt.atomic_file import write_atomically
    from imagenet_opt.bench.report import page, print_report, write_json

    command = ["imagenet-opt", "bench", *argv]
    print_report(report)
    if options.json is not None:
        write_json(report, options.json, command=command)
    if options.page is not None:
        write_atomically(options.page, page(report, command))


def parse(argv: list[str]) -> Options:
    """Parse the command line. Raises ConfigError for unknown options and unsuitable values."""
    parser = Parser("bench")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--batches", type=int, default=Options.batches)
    parser.add_argument("--repeats", type=int, default=Options.repeats)
    parser.add_argument("--against", default="")
    parser.add_argument("--same-bytes", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", type=Path)
    arguments = parser.parse_intermixed_args(argv)
    for name, most in LIMITS.items():
        if not 1 <= getattr(arguments, name) <= most:
            raise ConfigError(f"--{name} {getattr(arguments, name)} must be from 1 to {most}")
    check_writable(arguments.json)
    check_writable(arguments.page, "--page")
    return Options(
        tuple(arguments.overrides),
        arguments.batches,
        arguments.repeats,
        _peers(arguments.against),
        arguments.same_bytes,
        arguments.json,
        arguments.page,
    )


def _peers(words: str) -> tuple[str, ...]:
    names = [word.strip() for word in words.split(",") if word.strip()]
    for name in names:
        if name not in (*PEERS, "all"):
            hint = did_you_mean(name, PEERS, f"expected {', '.join(PEERS)}, or all")
            raise ConfigError(f"--against {name}: there is no such loader; {hint}")
    return tuple(PEERS) if "all" in names else tuple(dict.fromkeys(names))


def bench(options: Options) -> "Report":
    """Measure all rows. Raises ImagenetOptError."""
    from imagenet_opt import machine
    from imagenet_opt.bench.plan import make_plan, measure
    from imagenet_opt.bench.report import Report
    from imagenet_opt.config.build import device_of, make, num_processes, share_batch
    from imagenet_opt.config.compose import composed
    from imagenet_opt.data.index.index_cache import cache_folder

    config = composed(options.overrides)
    device = device_of(config)
    share_batch(config, num_processes(config, device)[1])
    data = make(config.data, "data")
    plan = make_plan(
        data.train,
        data.loading,
        against=options.against,
        num_batches=options.batches,
        has_gpu=device.type == "cuda",
        cache=cache_folder(config.data.cache_dir),
        same_bytes=options.same_bytes,
    )
    host = machine.facts()
    rounds, state = measure(plan, repeats=options.repeats)
    return Report(plan, rounds, host, state)
