"""`imagenet-opt bench`: measures the loader alone, compared with other loaders and with the limit of the decoder."""

import shlex
from argparse import Namespace
from pathlib import Path

from imagenet_opt.bench.peers import PEERS
from imagenet_opt.cli.arguments import Parser, check_writable
from imagenet_opt.errors import ConfigError, did_you_mean
from imagenet_opt.probe.isolated import begin_measuring

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
many processes. data.resize_on=worker or device leaves one of ours. On a machine with a GPU and without --against our
batches end on the GPU. data.region_decode=false is for `worker resize` alone, which then decodes whole pictures.

Reading it: a GPU that trains more images a second than `region decode` gives will wait. The table below the rows says
for what a worker spends its time: `decodes` is the CPUs'. A first round does not count: it brings the files, at most
20,000 of them, into memory. How fast the storage is, says imagenet-opt doctor; data.added_latency_ms simulates one.

Each turn is a process of its own, and the rows take turns: about ten seconds a turn and more, so a minute a row.
Start-up and warm-up are left out of every rate. Each loader has data.num_workers workers or threads. For a loader with
a file format of its own the files are converted below data.cache_dir, and the copy is removed at the end. Nothing else
is written; the data set is only read."""

LIMITS = {"batches": 100_000, "repeats": 1000}


def main(argv: list[str]) -> None:
    options = parse(argv)
    begin_measuring()
    from imagenet_opt.atomic_file import write_atomically
    from imagenet_opt.bench.benchmark import check_files, job_of, measure, rows_of
    from imagenet_opt.bench.report import as_json, page, tables_of
    from imagenet_opt.config.build import device_of, make, num_processes, share_batch
    from imagenet_opt.config.compose import composed
    from imagenet_opt.data.index.index_cache import cache_folder
    from imagenet_opt.display.terminal_table import about, print_tables, strict_json

    config = composed(options.overrides)
    device = device_of(config)
    share_batch(config, num_processes(config, device)[1])
    data = make(config.data, "data")
    if options.against or options.same_bytes:
        check_files(data.train, "--against" if options.against else "--same-bytes")
    facts = about(shlex.join(["imagenet-opt", "bench", *argv]))
    facts["versions"] |= {PEERS[name].package: PEERS[name].version for name in options.against if PEERS[name].installed}
    rows, end = rows_of(data.loading, options.against), "cpu" if options.against else device.type
    job = job_of(data.train, data.loading, options.batches, end)
    cache = cache_folder(config.data.cache_dir)
    rounds = measure(job, rows, repeats=options.repeats, cache=cache, same_bytes=options.same_bytes)
    tables = tables_of(rounds, job, rows)
    print_tables(tables)
    if options.json is not None:
        write_atomically(options.json, strict_json(as_json(rounds, job, tables, facts)))
    if options.page is not None:
        write_atomically(options.page, page(tables, facts))


def parse(argv: list[str]) -> Namespace:
    """Parse the command line. Raises ConfigError for unknown options and unsuitable values."""
    parser = Parser("bench")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--against", default="")
    parser.add_argument("--same-bytes", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", type=Path)
    options = parser.parse_intermixed_args(argv)
    for name, most in LIMITS.items():
        if not 1 <= getattr(options, name) <= most:
            raise ConfigError(f"--{name} {getattr(options, name)} must be from 1 to {most}")
    check_writable(options.json)
    check_writable(options.page, "--page")
    options.against = _peers(options.against)
    return options


def _peers(words: str) -> list[str]:
    names = [word.strip() for word in words.split(",") if word.strip()]
    for name in names:
        if name not in (*PEERS, "all"):
            hint = did_you_mean(name, PEERS, f"expected {', '.join(PEERS)}, or all")
            raise ConfigError(f"--against {name}: there is no such loader; {hint}")
    return list(PEERS) if "all" in names else list(dict.fromkeys(names))
