"""What the timeline's recorder takes of one CPU, also on machines with more CPUs than this one.

python suites/benchmarks/recorder.py [--cpus 2 8 64 192] [--repeats 3]

The recorder takes ten minutes of samples, 6000, and writes them as ever, without the waits between them: its CPU
seconds are those of ten minutes' recording, start-up left out. /proc/stat is made up, with a line for each CPU and one
of 2000 interrupts, and is an ordinary file: what the kernel takes to write it anew for each sample is not counted. All
other files are this machine's own. In turns; the median, the least and the greatest.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from unittest.mock import patch

from imagenet_opt import machine
from imagenet_opt.measure.telemetry import proc_counters, recorder_process
from imagenet_opt.measure.telemetry.shared_state import Gauges
from imagenet_opt.measure.telemetry.timeline import ChunkWriter

_SECONDS = 600.0


def made_up(num_cpus: int) -> str:
    """/proc/stat. Source: man 5 proc."""
    cpus = [f"cpu{cpu} 1234567 890 123456 98765432 12345 0 2345 0 0 0" for cpu in range(num_cpus)]
    total = "cpu  123456789 89000 12345600 9876543200 1234500 0 234500 0 0 0"
    return "\n".join([total, *cpus, f"intr 123456789{' 0 12345' * 1000}", "ctxt 123456789", "processes 123456", ""])


def recorded_cpu_seconds(num_cpus: int, folder: Path) -> float:
    """Of this process, for ten minutes of recording."""
    gauges, writer, now = Gauges(), ChunkWriter(folder / "timeline"), time.monotonic()
    stat, proc_file = folder / "stat", proc_counters.ProcFile
    stat.write_text(made_up(num_cpus))

    def ticks(interval: float) -> Iterator[float]:
        nonlocal now
        num = round(_SECONDS / interval)
        for number in range(num):
            now += interval
            if number == num - 1:
                writer._began -= _SECONDS  # so that the last writing compresses all
                gauges["done"] = 1
            yield now

    with (
        patch.object(recorder_process, "_ticks", ticks),
        patch.object(proc_counters, "monotonic", lambda: now),
        patch.object(proc_counters, "ProcFile", lambda path: proc_file(str(stat) if path == "/proc/stat" else path)),
        patch.object(os, "sched_getaffinity", lambda pid: set(range(num_cpus))),
    ):
        began = time.process_time()
        recorder_process.Recorder(gauges, os.getppid(), writer, None).run()
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpus", type=int, nargs="+", default=[2, 8, 64, 192])
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    print(f"{machine.usable_cpus()} CPUs, load {os.getloadavg()[0]:.1f}, {machine.versions()}\n")
    found: dict[int, list[float]] = {num: [] for num in args.cpus}
    for _ in range(args.repeats):
        for num, percents in found.items():
            with tempfile.TemporaryDirectory() as folder:
                percents.append(100 * recorded_cpu_seconds(num, Path(folder)) / _SECONDS)
    print("| CPUs of the machine | % of one CPU: median (least to greatest) |\n|---|---|")
    for num, percents in found.items():
        print(f"| {num} | {median(percents):.2f} ({min(percents):.2f} to {max(percents):.2f}) |")


if __name__ == "__main__":
    main()
