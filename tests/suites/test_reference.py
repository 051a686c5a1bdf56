"""Pages and pictures of docs/ that suites/docs/ writes are what the code and docs/peers.json say."""

import json

import pytest

from suites.docs.chart import DATA, PICTURES, RESULTS, chart, results
from suites.docs.reference import FOLDER, PAGES


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_up_to_date(name: str) -> None:
    assert (FOLDER / name).read_text() == PAGES[name](), "run `python -m suites.docs.reference`"


def test_the_chart_beside_peers_and_its_table_are_up_to_date() -> None:
    measured, again = json.loads(DATA.read_text()), "run `python -m suites.docs.chart`"
    for scheme, picture in PICTURES.items():
        assert picture.read_text() == chart(measured, scheme), again
    assert RESULTS.read_text() == results(RESULTS.read_text(), measured), again
