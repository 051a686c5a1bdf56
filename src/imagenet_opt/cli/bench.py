"""`imagenet-opt bench`: measures the loader alone, compared with other loaders and with the limit of the decoder."""

import shlex
from argparse import Namespace

from imagenet_opt.bench.peers import PEERS
from imagenet_opt.cli.arguments import Parser, between, new_file, write_outputs
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
many processes. data.resize_on=worker or device leaves one of ours. With a GPU and without --against our batches end on
the GPU. A GPU that trains more images a second than `region decode` gives will wait.

Each turn is a process of its own, about a minute a row; a first round, which brings at most 20,000 files into memory,
is left out. The data set is only read. docs/benchmarking.md explains the table."""


def main(argv: list[str]) -> None:
    options = parse(argv)
    begin_measuring()
    from imagenet_opt.config.compose import composed
    from imagenet_opt.config.dataset import check_folders

    config = composed(options.overrides, check_folders)
    from imagenet_opt.bench.benchmark import check_files, job_of, measure, rows_of  # imports torch
    from imagenet_opt.bench.report import as_json, page, tables_of
    from imagenet_opt.config.build import device_of, make, num_processes, share_batch
    from imagenet_opt.data.index.index_cache import cache_folder
    from imagenet_opt.display.terminal_table import about, print_tables

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
    write_outputs(options, lambda: as_json(rounds, job, tables, facts), lambda: page(tables, facts))


def parse(argv: list[str]) -> Namespace:
    """Parse the command line. Raises ConfigError for unknown options and unsuitable values."""
    parser = Parser("bench")
    parser.add_argument("--batches", type=between(1, 100_000), default=20)
    parser.add_argument("--repeats", type=between(1, 1000), default=6)
    parser.add_argument("--against", type=_peers, default="")
    parser.add_argument("--same-bytes", action="store_true")
    parser.add_argument("--json", type=new_file)
    parser.add_argument("--page", type=new_file)
    return parser.parse_intermixed_args(argv)


def _peers(words: str) -> list[str]:
    names = [word.strip() for word in words.split(",") if word.strip()]
    for name in names:
        if name not in (*PEERS, "all"):
            hint = did_you_mean(name, PEERS, f"expected {', '.join(PEERS)}, or all")
            raise ConfigError(f"--against {name}: there is no such loader; {hint}")
    return list(PEERS) if "all" in names else list(dict.fromkeys(names))
