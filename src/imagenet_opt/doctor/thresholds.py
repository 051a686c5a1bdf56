"""The thresholds of the doctor: shares 0 to 1 and factors, our choice unless a source is named.

Callbacks and other commands use some too: HEALTHY_BUSY of measure/telemetry/idle_causes.py, LEAST_GAIN of
measure/stats/verdict.py, MOSTLY of measure/storage/page_cache.py, OTHERS_SHARE of measure/telemetry/proc_counters.py.
"""

# Rates

SLOWER = 0.8  # a stage with less than this share of another stage's rate is slower; a smaller difference is noise
AGREES = 0.9
"""A run with this share of the expected rate is as fast as its stages; faster than 1 / AGREES contradicts them."""
WIDE = 0.2  # a rate varies widely if its interval is wider than this share of its median
AMPLE = 1.1  # a loader faster than this many times the device's rate is fast enough on average

# Storage

NEAR = 1.5  # a storage slower than this many times the loader's rate limits the loader; both rates vary in bursts
SATURATED = 2.0  # a rate is saturated at this many times the needed requests in flight; half of them then only wait
NEARLY_ALL = 0.9  # the fewest requests in flight that reach this share of the storage's highest rate are enough
LEAST_THROTTLED = 0.01  # share of refused requests; each costs a pause of a tenth of a second and more
STALL_SECONDS = 1.0
"""A pause of this length between two batches is a stall of the storage, not the latency of a single request."""
LITTLE = 0.05  # share of the data in memory; between this and MOSTLY the next epoch is predicted, not measured

# Waits

FETCH_SHARE = 0.4  # training waits for batches if these waits fill this share of the GPU's idle time
MOSTLY_READS = 0.8  # above this share of a worker's time, its waits for files limit it, whatever the storage can do
PARTLY_READS = 0.5  # above this share they limit it if the storage stalls, or if the run is as fast as its stages
ORDINARY_WAITS = 0.5  # ordinary steps wait for the GPU if there are at least this many waits per step

# CPUs

HYPER_THREAD = 0.25  # what the second thread of a core adds to a core
BUSY_CPUS = 0.8  # a reading process that keeps so many CPUs busy is the limit: one Python thread runs at a time
