"""What a watcher beside a run takes from it: images per second with the page, with the terminal's view, and without.

python suites/benchmarks/watching.py [--rounds 8] [--window-seconds 20] [--batch-size 50]

The demo trains for the whole time. `imagenet-opt watch` runs beside it twice, once as a page, which a client asks for
its version every 5 seconds and loads when it changed, as a browser does, and once with --terminal. In each window at
most one of them runs and the other is stopped (SIGSTOP); the order is drawn anew in each round. The steps of a window
are counted in the run's timeline, without its first seconds. Left out: the start of a watcher, and the work of the
browser or of the terminal, which usually are on another machine.
"""

import argparse
import os
import pty
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

import numpy as np

from imagenet_opt import machine
from imagenet_opt.measure.stats.block_ratios import block_ratios, verdict
from imagenet_opt.measure.telemetry.timeline import read_timeline

REPOSITORY = Path(__file__).parents[2]
SETTLING_SECONDS = 2.0
POLL_SECONDS = 5.0
ARMS = ("none", "page", "terminal")
WATCH = [sys.executable, "-m", "imagenet_opt.cli.main", "watch"]


class Browser(threading.Thread):
    """Loads the page when its version changed, while `active` is set."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.url, self.active, self.num_pages = url, threading.Event(), 0

    def run(self) -> None:
        seen = b""
        while self.active.wait():
            with suppress(OSError):
                version = _get(f"{self.url}version")
                if version != seen:
                    _get(self.url)
                    seen, self.num_pages = version, self.num_pages + 1
            time.sleep(POLL_SECONDS)


def _get(url: str, timeout: float = 10) -> bytes:
    with urllib.request.urlopen(url, timeout=timeout) as answer:
        return bytes(answer.read())


def start_run(folder: Path, batch_size: int) -> subprocess.Popen[bytes]:
    """Start the demo, and return once it has logged rows."""
    command = [sys.executable, str(REPOSITORY / "train.py"), f"hydra.run.dir={folder}", "logger=csv"]
    options = [f"data.batch_size={batch_size}", "trainer.max_epochs=10000"]
    run = subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (folder / "metrics.csv").exists():
        if run.poll() is not None:
            raise SystemExit("the demo did not start")
        time.sleep(1)
    return run


def start_watchers(folder: Path) -> tuple[dict[str, subprocess.Popen[str]], Browser]:
    """Start both watchers and return once both have shown the run; the terminal's output is read and dropped."""
    page = subprocess.Popen([*WATCH, str(folder)], stdout=subprocess.PIPE, text=True)
    assert page.stdout is not None
    url = page.stdout.readline().split(": ", 1)[1].strip()
    _get(url, timeout=300)
    reader, writer = pty.openpty()
    terminal = subprocess.Popen([*WATCH, str(folder), "--terminal"], stdin=writer, stdout=writer, text=True)
    os.read(reader, 1)
    threading.Thread(target=lambda: [None for _ in iter(lambda: os.read(reader, 65536), b"")], daemon=True).start()
    browser = Browser(url)
    browser.start()
    return {"page": page, "terminal": terminal}, browser


def windows(
    watchers: dict[str, subprocess.Popen[str]], browser: Browser, rounds: int, seconds: float
) -> list[dict[str, tuple[float, float]]]:
    """Begin and end of each arm's window in each round, in Unix seconds."""
    found: list[dict[str, tuple[float, float]]] = []
    for _ in range(rounds):
        found.append({})
        for arm in random.sample(ARMS, len(ARMS)):
            for name, watcher in watchers.items():
                watcher.send_signal(signal.SIGCONT if name == arm else signal.SIGSTOP)
            (browser.active.set if arm == "page" else browser.active.clear)()
            time.sleep(SETTLING_SECONDS)
            began = time.time()
            time.sleep(seconds)
            found[-1][arm] = began, time.time()
    return found


def steps_per_second(ends: np.ndarray, window: tuple[float, float]) -> float:
    """From the first to the last end of a step in the window."""
    inside = ends[(ends >= window[0]) & (ends <= window[1])]
    return float((len(inside) - 1) / (inside[-1] - inside[0]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--window-seconds", type=float, default=20)
    parser.add_argument("--batch-size", type=int, default=50)
    args = parser.parse_args()
    print(f"{machine.usable_cpus()} CPUs, load {os.getloadavg()[0]:.1f}, {machine.versions()}\n")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        run = start_run(folder, args.batch_size)
        watchers, browser = start_watchers(folder)
        before = {name: _cpu_seconds(watcher.pid) for name, watcher in watchers.items()}
        found = windows(watchers, browser, args.rounds, args.window_seconds)
        active = args.rounds * (args.window_seconds + SETTLING_SECONDS)
        shares = {name: (_cpu_seconds(each.pid) - before[name]) / active for name, each in watchers.items()}
        for watcher in watchers.values():
            watcher.kill()
        run.terminate()
        run.wait()
        ends = np.sort(read_timeline(folder / "timeline").spans("step")[:, 1])
    report(found, ends, args.batch_size)
    used = ", ".join(f"{name} {100 * share:.1f} % (start: {before[name]:.1f} s)" for name, share in shares.items())
    print(f"\nof one CPU, while it runs: {used}; pages loaded: {browser.num_pages}; load {os.getloadavg()[0]:.1f}")


def _cpu_seconds(pid: int) -> float:
    """Of a process since its start. Source: man 5 proc, fields 14 and 15 of stat."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def report(found: list[dict[str, tuple[float, float]]], ends: np.ndarray, batch_size: int) -> None:
    rates = {arm: [batch_size * steps_per_second(ends, each[arm]) for each in found] for arm in ARMS}
    pairs = [(arm, "none") for arm in ARMS[1:]]
    print("| beside the run | images/s, geometric mean | ratio to none (interval) | |\n|---|---|---|---|")
    print(f"| nothing | {np.exp(np.log(rates['none']).mean()):.1f} | | |")
    for (arm, _), ratio in zip(pairs, block_ratios(rates, pairs), strict=True):
        spread = f"{ratio.ratio:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"
        print(f"| {arm} | {np.exp(np.log(rates[arm]).mean()):.1f} | {spread} | {verdict(ratio)} |")
    for arm, each in rates.items():
        print(f"{arm}, images/s by round: {' '.join(f'{rate:.1f}' for rate in each)}")


if __name__ == "__main__":
    main()
