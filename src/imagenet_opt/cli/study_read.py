"""Reading alone: workers x batch x requests in flight, files in memory and on storage, of a folder or of shards."""

import itertools
from dataclasses import replace
from functools import partial

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from imagenet_opt.cli.composition import composed
from imagenet_opt.cli.doctor_samples import Rows, Samples
from imagenet_opt.cli.doctor_stages import Patient
from imagenet_opt.cli.progress import announced
from imagenet_opt.cli.study_request import Request, checked_options
from imagenet_opt.cli.study_rounds import rounds_of
from imagenet_opt.data.order import block_size_for
from imagenet_opt.data.reader import Reader
from imagenet_opt.data.shards import ShardIndex
from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.read_pass import BatchRead, ReadPass, read_shares, timed
from imagenet_opt.measure.read_sheet import WARM, Setting, State, read_sheet
from imagenet_opt.measure.sheet import Sheet

_WARM_SHARE = 4
"""At most a quarter of the files is kept in memory; the others are those on storage."""


class Options(BaseModel):
    """num_workers: processes that read; reads_in_flight: requests of each; batch_size: files that make a batch."""

    model_config = ConfigDict(extra="forbid")
    num_workers: tuple[PositiveInt, ...] = Field(min_length=1)
    reads_in_flight: tuple[PositiveInt, ...] = Field(min_length=1)
    batch_size: tuple[PositiveInt, ...] = Field(min_length=1)
    state: tuple[State, ...] = Field(min_length=1)

    @property
    def settings(self) -> list[Setting]:
        grid = itertools.product(self.state, self.num_workers, self.reads_in_flight, self.batch_size)
        return [Setting(*values) for values in grid]


class Files:
    """The files that are read: some in memory, once `bring` has read them, the others on storage."""

    def __init__(self, samples: Samples, num_warm: int) -> None:
        self.samples = samples
        self._warm, samples.rows = np.split(samples.rows, [min(num_warm, len(samples.rows) // _WARM_SHARE)])

    def bring(self) -> None:
        """Raises DataError where none can be read."""
        if num_warm := len(self._warm):
            with announced(1) as announce:
                announce(f"reading {num_warm} files into memory")
                self.samples.bring(self._warm, least=num_warm, seconds=0.0)

    def most(self, setting: Setting) -> int:
        """Batches for each worker that no turn exceeds: files on storage are read once in a turn."""
        return 1_000_000 if setting.state == WARM else len(self.samples.rows) // setting.num_at_a_time

    def rows(self, setting: Setting, num: int) -> tuple[Rows, bool]:
        """So many samples: in memory, or out of it and others than the last ones, as long as there are any; and whether
        the kernel confirms that they are out of it."""
        if setting.state == WARM:
            return np.resize(self._warm, num), False
        rows = self.samples.take(num)
        return rows, self.samples.evict(rows).verified


def run(request: Request) -> list[Sheet]:
    """Raises ImagenetOptError."""
    options = checked_options(Options, request)
    patient = Patient(composed(request.overrides))
    samples, settings = patient.samples, options.settings
    if patient.how.shuffle == "block":
        samples.rows = in_blocks(len(samples.index), block_size_for(min(options.batch_size)))
    files = Files(samples, max([one.num_at_a_time for one in settings if one.state == WARM], default=0))
    for setting in settings:
        if not files.most(setting):
            few = f"only {len(samples.rows)} files; set study.batch_size=[N] or study.num_workers=[N] with less"
            raise ConfigError(f"study={request.name}: {setting}: {few}")
    files.bring()
    turns = {str(setting): partial(turn, files, setting, request.seconds) for setting in settings}
    rounds = rounds_of(turns, request, ReadPass)
    found = {setting: rounds.results[str(setting)] for setting in settings if str(setting) not in rounds.failures}
    sheet = read_sheet(found, _title(patient))
    return [replace(sheet, notes=(*rounds.reasons, *sheet.notes))]


def _title(patient: Patient) -> str:
    index = patient.samples.index
    kind = f"packed (shards: {len(index.shards)})," if isinstance(index, ShardIndex) else "a folder,"
    return f"{kind} {len(index):,} images, data.shuffle={patient.how.shuffle}"


def in_blocks(num: int, block_size: int) -> Rows:
    """Samples in random order of blocks of neighbours, as data.shuffle=block has them."""
    blocks = np.random.default_rng().permutation(num // block_size)
    return (block_size * blocks[:, None] + np.arange(block_size)).ravel()


def turn(files: Files, setting: Setting, seconds: float) -> ReadPass:
    """One batch for each worker tells how many of them fill `seconds`; these are then read, from first to last."""
    first = read(files, setting, 1)
    num_each = min(int(seconds / first.seconds), files.most(setting))
    return first if num_each <= 1 else read(files, setting, num_each)


def read(files: Files, setting: Setting, num_each: int) -> ReadPass:
    """So many batches by each process, which take turns as a loader's workers do."""
    rows, is_cold = files.rows(setting, num_each * setting.num_at_a_time)
    batches = rows.reshape(-1, setting.batch_size)
    found = read_shares(
        [
            partial(_share, files.samples, setting.reads_in_flight, batches[worker :: setting.num_workers])
            for worker in range(setting.num_workers)
        ]
    )
    return replace(found, is_cold=is_cold)


def _share(samples: Samples, reads_in_flight: int, batches: Rows) -> list[BatchRead]:
    """In a process of its own: what a worker reads, further batches ahead as in training. Nothing is decoded."""
    reader = Reader(samples.store, reads_in_flight=reads_in_flight, timeout_seconds=samples.how.read_timeout)
    places = [((0, step), batch) for step, batch in enumerate(batches)]

    def batch(step: int) -> list[bytes | Exception]:
        following = map(places.__getitem__, range(step + 1, len(places)))
        return [*reader.read(*places[step], following=following).samples]

    return [timed(partial(batch, step)) for step in range(len(places))]
