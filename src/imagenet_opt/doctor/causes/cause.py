"""The table of causes: the first words of their verdicts, and their meanings."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Cause:
    """head: the first words of the verdict's sentence. meaning: the cause in a few words, below the sentence.

    shows_beside_stages: whether the cause appears only in the full run, which is then slower than its stages allow.
    """

    head: str
    meaning: str
    shows_beside_stages: bool = False


CAUSES = {
    "healthy": Cause("Healthy", "the GPU is the limit"),
    "slow_gpu": Cause("Slow GPU", "the GPU is slower than its kind"),
    "storage_latency": Cause("Storage-bound", "storage answers late"),
    "storage_bandwidth": Cause("Storage-bound", "storage gives too few MB/s"),
    "lazy_mount": Cause("Storage-bound", "the mount fetches each file from a remote store at first touch"),
    "few_workers": Cause("Loader-bound", "fewer loader workers than CPUs"),
    "few_cpus": Cause("CPU-bound", "the job may use only some of the CPUs"),
    "slow_decode": Cause("CPU-bound", "decoding takes the CPUs"),
    "busy_neighbour": Cause("CPU-bound", "other processes take the CPUs"),
    "small_prefetch": Cause("Loader-bound", "too few batches ahead", shows_beside_stages=True),
    "host_sync": Cause("Host sync", "the host waits for the GPU in each step", shows_beside_stages=True),
    "launch_bound": Cause("Launch-bound", "the host cannot launch work as fast as the GPU does it"),
    "contention": Cause("CPU-bound", "the loader takes CPU time that the training process needs"),
    "slow_logging": Cause("Main process", "logging holds up the step", shows_beside_stages=True),
    "checkpoint_stall": Cause("Main process", "checkpoints hold up the step", shows_beside_stages=True),
    "slow_callback": Cause("Main process", "a callback holds up the step", shows_beside_stages=True),
    "slow_copy": Cause("Copy-bound", "the copy to the GPU is the limit"),
    "unexplained": Cause("Unexplained", "no single experiment explains the gap"),
}
"""Key of each verdict -> its text."""
