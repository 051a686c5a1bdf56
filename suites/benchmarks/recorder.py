"""What the recorder of a run takes of one CPU on this machine: python suites/benchmarks/recorder.py [--seconds 30]

The recorder samples and writes as in a run, beside a process that sleeps: its thread by the kernel's count, and the
whole process, which includes waking up and Python's lock. Loader workers add a read of /proc each.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

from imagenet_opt import machine
from imagenet_opt.measure.telemetry.recorder import Recorder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder()
        recorder.write_to(Path(folder) / "timeline")
        time.sleep(1)
        before = time.process_time(), recorder.cpu_seconds, recorder.seconds
        time.sleep(args.seconds)
        process, thread, seconds = time.process_time(), recorder.cpu_seconds, recorder.seconds
        recorder.stop()
    elapsed = (seconds - before[2]) / 100
    print(f"{machine.usable_cpus()} CPUs, load {os.getloadavg()[0]:.1f}, {machine.versions()}")
    print(f"thread {(thread - before[1]) / elapsed:.2f} %, process {(process - before[0]) / elapsed:.2f} % of one CPU")


if __name__ == "__main__":
    main()
