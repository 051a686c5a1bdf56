"""The chart beside peers and the table of the results page are both what docs/peers.json says."""

import json
import re
from xml.etree import ElementTree

import pytest

from suites.docs.chart import DATA, PICTURES, RESULTS, chart, results

MEASURED = json.loads(DATA.read_text())
AGAIN = "run `python -m suites.docs.chart`"


@pytest.mark.parametrize("scheme", PICTURES)
def test_the_picture_is_up_to_date_and_its_bars_are_as_long_as_the_rates(scheme: str) -> None:
    text = PICTURES[scheme].read_text()
    assert text == chart(MEASURED, scheme), AGAIN
    name = "{http://www.w3.org/2000/svg}rect"
    lengths = [float(bar.get("width", 0)) for bar in ElementTree.fromstring(text).iter(name)]
    rates = sorted((row["rate"] for row in MEASURED["rows"] if "label" in row), reverse=True)
    assert lengths == pytest.approx([lengths[0] * rate / rates[0] for rate in rates], abs=0.1)


def test_the_table_of_the_results_has_the_same_numbers() -> None:
    text = RESULTS.read_text()
    assert text == results(text, MEASURED), AGAIN
    section = re.split(r"^## ", text, flags=re.MULTILINE)
    [rows] = [part for part in section if part.startswith("The same bytes for all")]
    for row in MEASURED["rows"]:
        assert f"| {row['name']} | {row['rate']} | {row['low']} to {row['high']} |" in rows
