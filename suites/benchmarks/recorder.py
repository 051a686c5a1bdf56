"""What the recorder of a run takes of one CPU on this machine: python suites/benchmarks/recorder.py [--seconds 30]

The recorder samples and writes as in a run, in a process that sleeps. Loader workers add a read of /proc each.
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
        before = time.process_time()
        time.sleep(args.seconds)
        percent = 100 * (time.process_time() - before) / args.seconds
        recorder.stop()
    print(f"{machine.usable_cpus()} CPUs, load {os.getloadavg()[0]:.1f}, {machine.versions()}")
    print(f"{percent:.2f} % of one CPU")


if __name__ == "__main__":
    main()
