"""A short, fixed form of `python -m suites.fuzz.run`: a damaged file is read, or ends in a clear error."""

from collections.abc import Iterator

import pytest

from suites.fuzz.judge import Judge
from suites.fuzz.readers import drawn_images
from suites.fuzz.run import fuzz

READERS = ("checkpoint", "sweep", "index cache", "shards", "tars", "sample cache", "metrics.csv", "wandb_id.txt")
EXAMPLES = {"images": 80} | dict.fromkeys(READERS, 50)


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    made = Judge(tmp_path_factory.mktemp("fuzz"), EXAMPLES)
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.parametrize("reader", EXAMPLES)
def test_a_reader_gives_a_value_or_says_what_is_wrong(reader: str, judge: Judge) -> None:
    fuzz(judge, reader, list(drawn_images()), EXAMPLES[reader], 0)
    assert [what for name, what in judge.undocumented if name == reader] == []
    assert judge.counts[reader]["value"] > 0
