"""A short, fixed form of `python -m suites.fuzz.run`: a damaged file is read, or ends in a clear error."""

from collections.abc import Iterator

import pytest

from suites.fuzz.judge import Judge
from suites.fuzz.readers import drawn_images
from suites.fuzz.run import fuzz

EXAMPLES = {
    "images": 80,
    "checkpoint": 50,
    "sweep": 50,
    "index cache": 50,
    "shards": 50,
    "tars": 50,
    "sample cache": 50,
    "metrics.csv": 50,
    "wandb_id.txt": 50,
}


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
