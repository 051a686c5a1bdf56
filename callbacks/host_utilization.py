"""Logs how busy the CPUs are and how much memory is used during training."""

from typing import ClassVar

from imagenet_opt.run.utilization import Utilization


class HostUtilization(Utilization):
    """Means of rank 0's machine since the last logged row, sampled in the background five times a second.

    | key | unit |
    |---|---|
    | `host/cpu_percent` | %, 0 to 100 of the CPUs that the process may use |
    | `host/memory_used_gib` | GiB of RAM in use on the machine, shared memory included |

    The first step, which may compile, is left out. Validation during the fit is included. A row without a sample since
    the last row has no value. CPU time counts all work on these CPUs, including network and file system work of the
    kernel; under a cgroup quota or SLURM that grants fewer CPUs than the affinity, only the work of this process and
    its descendants.
    """

    keys: ClassVar = {"cpu_percent": "host/cpu_percent", "memory_used_gib": "host/memory_used_gib"}
