"""Facts about a run and its machine."""

from dataclasses import dataclass


@dataclass(kw_only=True)
class Facts:
    """What the doctor's rules read, except the rates of the stages. None: unknown, or not checked."""

    usable_cpus: int
    """CPUs that this process may use, after affinity, cgroup quota and SLURM."""
    machine_cpus: int
    num_workers: int
    """Loader workers, after the loader has reduced them to the machine's CPUs and memory."""
    prefetch_factor: int
    """Batches that each worker prepares ahead, after the loader has reduced them to the machine's memory."""
    has_gpu: bool = False
    packed: bool = False
    """The data is stored in shards."""
    in_slurm: bool = False
    num_samples: int | None = None
    """Images of the training set."""
    log_every_n_steps: int | None = None
    cpu_limit: str | None = None
    """What limits the usable CPUs, as `machine.cpu_limits` names it."""
    resize_on: str | None = None
    """Where images are resized: "worker" or "device"."""
    reads_in_flight: str | None = None
    """data.reads_in_flight as configured: a number, or "auto"."""
    precision: str | None = None
    profile: str | None = None
    """Rate and source of the simulated device's profile."""
    profile_estimate: bool | None = None
    """The simulated device's profile is an estimate, not a measurement."""
    rated_images_per_second: float | None = None
    """Rate of a healthy device of this kind with this network."""
    cached_share: float | None = None
    """Share of the data in the page cache (for a URL: in the local cache) before the first experiment, 0 to 1."""
    cached_share_method: str | None = None
    """How `cached_share` was measured, or why it is unknown."""
    cache_room: float | None = None
    """Share of the training set, in bytes, for which the local cache has room; None if data.root is a folder. For a
    URL, `cached_share` is the share in the local cache."""
    cache_evidence: str | None = None
    """How much the local cache keeps, and what limits it."""
    storage_requests: float | None = None
    """Requests of the loader to the service of a URL, with those that were repeated."""
    throttled_requests: int | None = None
    """Those of them that the service refused as too many (429, 503)."""
    mb_per_image: float | None = None
    megapixels: float | None = None
    """Mean size of an image."""
    pack_option: str | None = None
    """Option of `imagenet-opt pack` that fits the image size of the run, such as "for=224"; None for packed data."""
    pack_speedup: float | None = None
    """Images/s that a loader process decodes from packed images / from the originals, all in memory."""
    pack_bytes_ratio: float | None = None
    """Bytes of packed images / bytes of the originals."""
    images_per_request: float | None = None
    """Mean number of images that one request to the storage returns."""
    first_touch_seconds: float | None = None
    """Median time of a request for files that were not read before."""
    second_touch_seconds: float | None = None
    """Median time of the second read of the same files, which had left the page cache."""
    first_touch_evidence: str | None = None
    first_requests_in_flight: int | None = None
    """Requests in flight of all workers when an epoch begins."""
    lazy: bool | None = None
    """The mount fetches files from a remote store at their first touch."""
    cold_verified: bool | None = None
    """All files that were to be read from storage had left the page cache."""
    cold_evidence: str | None = None
    """How many files left the page cache, in the first experiment in which some files stayed."""
    cold_passes: float | None = None
    """How many times the loader's experiment read each file from storage."""
    storage_latency_seconds: float | None = None
    """Median time of a request to storage while no other request is in flight."""
    storage_bound: str | None = None
    """What bounds reads at `requests_in_flight`: "latency", "bandwidth" or "cpu"."""
    storage_evidence: str | None = None
    requests_in_flight: float | None = None
    """Mean number of requests of all workers together in flight, files in the state by which the run is judged."""
    kept_in_memory: bool | None = None
    """Recently read files stay in the page cache, and their reads do not wait for storage."""
    memory_evidence: str | None = None
    """Why the stages with files in memory are left out."""
    main_cpu_seconds: float | None = None
    """CPU time of the training process per step."""
    no_kernels_reason: str | None = None
    """Why the profiler recorded no kernel of the GPU."""
    waits_per_step: float | None = None
    """How often the host waits for the GPU in an ordinary step."""
    waits_places: str | None = None
    """The most frequent waits of the host for the GPU, as "item at mine.py:7, cpu at mine.py:9"."""
    others_cpus: float | None = None
    """CPUs that processes outside this run use."""
    others_names: str | None = None
    """The busiest processes outside this run, as "java (pid 8), python (pid 71)"."""
    accelerator_utilization: float | None = None
    """Share of the full run in which the accelerator computes, 0 to 1."""
    not_measured: str | None = None
    """Experiments that failed, and why."""

    def known(self) -> dict[str, float | str]:
        """All facts that are not None, by name."""
        return {name: value for name, value in vars(self).items() if value is not None}
