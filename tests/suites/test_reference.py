"""The pages of docs/reference/ are what the code says. `python -m suites.docs.reference` writes them."""

import pytest

from suites.docs.reference import FOLDER, PAGES


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_up_to_date(name: str) -> None:
    assert (FOLDER / name).read_text() == PAGES[name](), "run `python -m suites.docs.reference`"
