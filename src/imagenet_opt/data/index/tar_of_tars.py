"""Tars in a tar, as ILSVRC2012_img_train.tar has one for each class. Their images are records of the outer tar."""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

from imagenet_opt.data.index.layout import kind
from imagenet_opt.data.index.split import numbers
from imagenet_opt.data.index.tar_members import Read, TarError, members
from imagenet_opt.data.index.tar_samples import TarSamples

Open = Callable[[str], AbstractContextManager[tuple[Read, int]]]
"""Opens a tar by its name for reading, and tells its size in bytes."""
Places = Mapping[str, tuple[int, int]]
"""Name of a tar -> its start and size in the outer tar."""


def inner_tars(open_tar: Open, outer: str) -> Places:
    """The tars in a tar, sorted; {} for one that begins with another file. Raises TarError for other files beside
    tars."""
    found, others = dict[str, tuple[int, int]](), Counter[str]()
    with open_tar(outer) as (read, num_bytes):
        for name, start, size, is_file in members(read, num_bytes):
            file = os.path.basename(os.fsdecode(name))
            if kind(file) == ".tar" and is_file and file not in found:
                found[file] = start, size
            elif found:
                others[kind(file)] += 1
            else:
                return {}
    if others:
        raise TarError(f"holds {len(found)} tars, and beside them or twice {numbers(others)}; leave these out")
    return dict(sorted(found.items()))


@contextmanager
def open_inner(open_tar: Open, outer: str, places: Places, name: str) -> Iterator[tuple[Read, int]]:
    """An Open for the tars in `outer`."""
    first, num_bytes = places[name]
    with open_tar(outer) as (read, _):
        yield lambda start, size: read(first + start, max(0, min(size, num_bytes - start))), num_bytes


def samples_of_outer(places: Places, samples: Sequence[TarSamples]) -> TarSamples:
    """The samples of all inner tars, with their places in the outer one."""
    return TarSamples(
        names=[name for each in samples for name in each.names],
        starts=[
            first + start for (first, _), each in zip(places.values(), samples, strict=True) for start in each.starts
        ],
        sizes=[size for each in samples for size in each.sizes],
        labels=[label for each in samples for label in each.labels],
        others=sum((each.others for each in samples), Counter[str]()),
        has_end_mark=all(each.has_end_mark for each in samples),
    )
