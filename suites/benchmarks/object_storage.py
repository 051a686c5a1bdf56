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
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import numpy as np
import psutil
import torch

from imagenet_opt.data.index.open_index import open_index
from imagenet_opt.data.index.split import subset
from imagenet_opt.data.loader import RankInfo, store_of, train_loader
from imagenet_opt.data.options import LoaderOptions
from imagenet_opt.data.storage.store import Store
from imagenet_opt.machine import cpu_name, usable_cpus, versions
from imagenet_opt.pack.image import PackOptions
from imagenet_opt.pack.pack import pack
from imagenet_opt.probe.throughput import SKIPPED_ROUNDS_COLD, Span, drain

BUCKET = "bench"
LOCAL, OBJECTS, NAIVE = "local folder", "one object an image, s3://", "one request at a time, bytes only, s3://"
"""Rows of the table that others are compared with."""
LISTED = 50_000
"""Samples of an index: the images again and again, so that no epoch ends within a measurement."""


class S3(asyncio.Protocol):
    """One connection of a client; `files` is shared: key -> bytes."""

    def __init__(self, files: dict[str, bytes], etags: dict[str, str], latency: float) -> None:
        self.files, self.etags, self.latency = files, etags, latency
        self.received = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        while b"\r\n\r\n" in self.received:
            head, _, self.received = self.received.partition(b"\r\n\r\n")
            asyncio.get_running_loop().call_later(self.latency, self.answer, head.decode("latin-1"))

    def answer(self, head: str) -> None:
        first, *lines = head.split("\r\n")
        method, target, _ = first.split(" ")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        place = urlsplit(target)
        key = unquote(place.path).removeprefix(f"/{BUCKET}").removeprefix("/")
        if not key:
            self.send(200, self.listing(parse_qs(place.query)))
        elif key not in self.files:
            self.send(404, b"<Error><Code>NoSuchKey</Code></Error>")
        else:
            self.send_file(key, headers.get("range", ""), is_head=method == "HEAD")

    def send_file(self, key: str, wanted: str, *, is_head: bool) -> None:
        content, more = self.files[key], f"ETag: {self.etags[key]}\r\nLast-Modified: Sun, 01 Jan 2023 00:00:00 GMT\r\n"
        size, status = len(content), 200
        if wanted:
            start, _, end = wanted.removeprefix("bytes=").partition("-")
            last = min(int(end or size - 1), size - 1)
            content, status = memoryview(content)[int(start) : last + 1], 206
            more += f"Content-Range: bytes {start}-{last}/{size}\r\n"
        self.send(status, content, more, is_head=is_head)

    def listing(self, query: dict[str, list[str]]) -> bytes:
        prefix, delimiter = query.get("prefix", [""])[0], query.get("delimiter", [""])[0]
        keys = [key for key in self.files if key.startswith(prefix)]
        folders: list[str] = []
        if delimiter:
            below = [key[len(prefix) :] for key in keys]
            folders = sorted({prefix + name.partition("/")[0] + "/" for name in below if "/" in name})
            keys = [key for key, name in zip(keys, below, strict=True) if "/" not in name]
        entries = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>2023-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>{escape(self.etags[key])}</ETag><Size>{len(self.files[key])}</Size></Contents>"
            for key in keys
        ) + "".join(f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in folders)
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>".encode()

    def send(self, status: int, body: Any, more: str = "", *, is_head: bool = False) -> None:
        self.transport.write(f"HTTP/1.1 {status} X\r\n{more}Content-Length: {len(body)}\r\n\r\n".encode())
        if not is_head:
            self.transport.write(body)


def serve(folders: dict[str, Path], latency: float, port: Any) -> None:
    """Serve all files of the folders, from memory, below their names."""
    files = {
        f"{name}/{file.relative_to(folder).as_posix()}": file.read_bytes()
        for name, folder in folders.items()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }
    etags = {key: f'"{hashlib.md5(content).hexdigest()}"' for key, content in files.items()}

    async def run() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: S3(files, etags, latency), "127.0.0.1", 0)
        port.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


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
        measure(args, Path(scratch))


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


def measure(args: argparse.Namespace, scratch: Path) -> None:
    plain, packed = scratch / "plain", scratch / "packed"
    plain.mkdir()
    for split in ("train", "val"):
        (plain / split).symlink_to(args.images.resolve())
    pack(plain, packed, PackOptions(shard_mb=64))
    cache, url = scratch / "cache", f"s3://{BUCKET}"
    options = LoaderOptions(batch_size=args.batch_size, num_workers=args.workers, resize_on="device", cache_gb=0)
    in_blocks = replace(options, shuffle="block")
    with served({"plain/train": args.images.resolve(), "packed": packed}, args.latency_ms / 1000) as server:
        naive = store_of(open_index(f"{url}/plain", "train", cache), options)
        rows: dict[str, Callable[[], float]] = {
            LOCAL: lambda: loader_rate(plain, cache, options, args.seconds),
            "shards, local": lambda: loader_rate(packed, cache, in_blocks, args.seconds),
            "shards, s3://": lambda: loader_rate(f"{url}/packed", cache, in_blocks, args.seconds),
            OBJECTS: lambda: loader_rate(f"{url}/plain", cache, options, args.seconds),
            NAIVE: lambda: naive_rate(naive, args.seconds),
        }
        results: dict[str, list[float]] = {name: [] for name in rows}
        cpu: dict[str, list[float]] = {name: [] for name in rows}
        for _ in range(args.rounds):
            for name, rate in rows.items():
                before, began = sum(server.cpu_times()[:2]), time.perf_counter()
                results[name].append(rate())
                cpu[name].append((sum(server.cpu_times()[:2]) - before) / (time.perf_counter() - began))
    print_table(args, results, cpu)


def print_table(args: argparse.Namespace, results: dict[str, list[float]], cpu: dict[str, list[float]]) -> None:
    print(f"{cpu_name()}, {usable_cpus()} CPUs; {versions()}; load {os.getloadavg()[0]:.1f} at the end")
    print(f"{args.latency_ms:g} ms, {args.workers} workers, batch {args.batch_size}, medians of {args.rounds} rounds")
    print("| data | images/s | least and most | of the local folder | CPUs of the server |\n|---|---|---|---|---|")
    medians = {name: median(rates) for name, rates in results.items()}
    for name, rates in results.items():
        share = f"{medians[name] / medians[LOCAL]:.2f}"
        print(
            f"| {name} | {medians[name]:.0f} | {min(rates):.0f}-{max(rates):.0f} | {share} | {median(cpu[name]):.2f} |"
        )
    print(f"objects against one request at a time: {medians[OBJECTS] / medians[NAIVE]:.0f} x")


if __name__ == "__main__":
    main()
