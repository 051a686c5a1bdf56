"""The loader on objects behind a latency, beside the local disk and a client with one request at a time.

    python -m suites.benchmarks.object_storage --images FOLDER [--latency-ms 30] [--workers 2] [--rounds 3]

FOLDER has a folder of JPEGs per class. A server of this machine answers the requests of S3 that the loader makes: lists
and reads, with ranges and ETags. Each answer comes after the latency; the bandwidth is not limited. The server needs
CPU time of the same machine, about as much as the table says.
"""

import argparse
import asyncio
import hashlib
import multiprocessing
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from xml.sax.saxutils import escape

import numpy as np
import psutil
import torch
from aiohttp import web

from imagenet_opt.data.index.open_index import open_index
from imagenet_opt.data.index.split import subset
from imagenet_opt.data.loader import RankInfo, store_of, train_loader
from imagenet_opt.data.options import LoaderOptions
from imagenet_opt.data.storage.store import Store
from imagenet_opt.display.table import Column, Table
from imagenet_opt.machine import cpu_name, usable_cpus, versions
from imagenet_opt.pack.image import PackOptions
from imagenet_opt.pack.pack import pack
from imagenet_opt.probe.throughput import SKIPPED_ROUNDS_COLD, Span, drain
from imagenet_opt.study.comparison import ComparedSetting, Comparison
from suites.studies.command import measured

BUCKET = "bench"
LOCAL, OBJECTS, NAIVE = "local folder", "one object an image, s3://", "one request at a time, bytes only, s3://"
"""Rows of the table that others are compared with."""
LISTED = 50_000
"""Samples of an index: the images again and again, so that no epoch ends within a measurement."""


class S3:
    """The answers to the requests that the loader makes. files: key -> content."""

    def __init__(self, files: dict[str, bytes], latency: float) -> None:
        self.files, self.latency = files, latency
        self.etags = {key: f'"{hashlib.md5(content).hexdigest()}"' for key, content in files.items()}

    async def answer(self, request: web.Request) -> web.Response:
        await asyncio.sleep(self.latency)
        key, part = request.match_info["key"], request.http_range
        if not key:
            return web.Response(text=self.listing(request.query), content_type="application/xml")
        if key not in self.files:
            return web.Response(status=404, text="<Error><Code>NoSuchKey</Code></Error>")
        content, headers = self.files[key], {"ETag": self.etags[key], "Last-Modified": "Sun, 01 Jan 2023 00:00:00 GMT"}
        if part == slice(None, None, 1):
            return web.Response(body=content, headers=headers)
        first, end, _ = part.indices(len(content))
        headers["Content-Range"] = f"bytes {first}-{end - 1}/{len(content)}"
        return web.Response(status=206, body=content[first:end], headers=headers)

    def listing(self, query: Mapping[str, str]) -> str:
        """All keys below the prefix; with a delimiter those of the folder itself, and the folders in it."""
        prefix, keys, folders = query.get("prefix", ""), list[str](), set[str]()
        for key in self.files:
            name, slash, _ = key.removeprefix(prefix).partition("/")
            if not key.startswith(prefix):
                continue
            if slash and "delimiter" in query:
                folders.add(f"{prefix}{name}/")
            else:
                keys.append(key)
        entries = [
            f"<Contents><Key>{escape(key)}</Key><LastModified>2023-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>{escape(self.etags[key])}</ETag><Size>{len(self.files[key])}</Size></Contents>"
            for key in keys
        ]
        entries += [f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in sorted(folders)]
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{''.join(entries)}</ListBucketResult>"


def serve(folders: dict[str, Path], latency: float, port: Any) -> None:
    """Serve all files of the folders, from memory, below their names. port: a pipe for the number of the port."""
    files = {
        f"{name}/{file.relative_to(folder).as_posix()}": file.read_bytes()
        for name, folder in folders.items()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }
    app = web.Application()
    app.router.add_get(f"/{BUCKET}{{slash:/?}}{{key:.*}}", S3(files, latency).answer)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port.send(server.getsockname()[1])
        web.run_app(app, sock=server, print=None)


def loader_rate(root: Path | str, cache: Path, options: LoaderOptions, seconds: float) -> float:
    """Images per second of the loader on `root`."""
    index = open_index(root, "train", cache)
    index = subset(index, np.tile(np.arange(len(index)), -(-LISTED // len(index))))
    loader = train_loader(index, options, RankInfo(device=torch.device("cpu")))
    return drain(loader, Span(seconds), skipped_rounds=SKIPPED_ROUNDS_COLD).images_per_second


def naive_rate(store: Store, seconds: float) -> float:
    """Images per second of a client that reads one image after the other, and decodes none."""
    began, num = time.perf_counter(), 0
    rows = np.random.default_rng(0).permutation(len(store))
    while time.perf_counter() - began < seconds:
        store.read_many(rows[num % len(rows) :][:1])
        num += 1
    return num / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--latency-ms", type=float, default=30.0)
    parser.add_argument("--workers", type=int, default=usable_cpus())
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        print(measure(args, Path(scratch)).markdown())


@contextmanager
def served(folders: dict[str, Path], latency_seconds: float) -> Iterator[psutil.Process]:
    """A server of these folders in a process of its own; the environment leads to it."""
    receive, send = multiprocessing.Pipe(duplex=False)
    server = multiprocessing.get_context("spawn").Process(
        target=serve, args=(folders, latency_seconds, send), daemon=True
    )
    server.start()
    os.environ |= {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{receive.recv()}", "AWS_REGION": "us-east-1"}
    os.environ |= {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench"}
    yield psutil.Process(server.pid)
    server.kill()


def measure(args: argparse.Namespace, scratch: Path) -> Table:
    plain, packed = scratch / "plain", scratch / "packed"
    plain.mkdir()
    for split in ("train", "val"):
        (plain / split).symlink_to(args.images.resolve())
    pack(plain, packed, PackOptions(shard_mb=64))
    cache, url = scratch / "cache", f"s3://{BUCKET}"
    options = LoaderOptions(batch_size=args.batch_size, num_workers=args.workers, resize_on="device", cache_gb=0)
    in_blocks = replace(options, shuffle="block")
    with served({"plain/train": args.images.resolve(), "packed": packed}, args.latency_ms / 1000) as server:

        def turn(rate: Callable[[], float]) -> tuple[float, float]:
            """Images per second, and CPUs of the server meanwhile."""
            before, began = sum(server.cpu_times()[:2]), time.perf_counter()
            images_per_second = rate()
            return images_per_second, (sum(server.cpu_times()[:2]) - before) / (time.perf_counter() - began)

        naive = store_of(open_index(f"{url}/plain", "train", cache), options)
        rates: dict[str, Callable[[], float]] = {
            LOCAL: lambda: loader_rate(plain, cache, options, args.seconds),
            "shards, local": lambda: loader_rate(packed, cache, in_blocks, args.seconds),
            "shards, s3://": lambda: loader_rate(f"{url}/packed", cache, in_blocks, args.seconds),
            OBJECTS: lambda: loader_rate(f"{url}/plain", cache, options, args.seconds),
            NAIVE: lambda: naive_rate(naive, args.seconds),
        }
        against = dict.fromkeys(rates, LOCAL) | {LOCAL: None, NAIVE: OBJECTS}
        settings = {name: ComparedSetting((name,), partial(turn, rate), against[name]) for name, rate in rates.items()}
        rounds = measured(settings, args.rounds)
    return Comparison(
        f"{args.latency_ms:g} ms, {args.workers} workers, batch {args.batch_size}, {args.rounds} rounds",
        ("data",),
        "images/s",
        settings,
        rounds,
        lambda found: found[0],
        more={Column("CPUs of the server", "{:.2f}"): lambda turns: median(cpus for _, cpus in turns)},
    ).table(f"{cpu_name()}, {usable_cpus()} CPUs; {versions()}; load {os.getloadavg()[0]:.1f} at the end")


if __name__ == "__main__":
    main()
