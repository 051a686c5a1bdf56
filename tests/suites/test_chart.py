"""The chart beside peers and the table of the results page are what docs/peers.json says."""

import json

from suites.docs.chart import DATA, PICTURES, RESULTS, chart, results


def test_the_pictures_and_the_table_are_up_to_date() -> None:
    measured, again = json.loads(DATA.read_text()), "run `python -m suites.docs.chart`"
    for scheme, picture in PICTURES.items():
        assert picture.read_text() == chart(measured, scheme), again
    assert RESULTS.read_text() == results(RESULTS.read_text(), measured), again
