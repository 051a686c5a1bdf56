"""Printable names, and errors in one line."""

import pytest
from torch.utils.data import DataLoader

from imagenet_opt.errors import last_error_line, named_first_line, printable


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("n01440764/a b ß 猫 🐈.JPEG", "n01440764/a b ß 猫 🐈.JPEG"),
        ("two\nlines\r\t", "two\\nlines\\r\\t"),
        ("\x1b[31mred\x1b[0m \x9b2J \x00", "\\x1b[31mred\\x1b[0m \\x9b2J \\x00"),
        ("\udcff.JPEG", "\\xff.JPEG"),
        ("a\u202egepj\u2028b", "a\\u202egepj\\u2028b"),
    ],
)
def test_only_control_characters_and_surrogates_are_escaped(name: str, shown: str) -> None:
    assert printable(name) == shown
    assert printable(name).encode().decode() == shown


@pytest.mark.parametrize(
    ("output", "line"),
    [
        ("Traceback ...\n  raise\nRuntimeError: no room\nwandb: done", "RuntimeError: no room"),
        ("[rank1]: torch.OutOfMemoryError: CUDA out of memory", "OutOfMemoryError: CUDA out of memory"),
        ("torch._dynamo.exc.Unsupported: a call\nNote: a hint", "Unsupported: a call"),
        ("KeyError: 'a'\nDatasetNotFound: no train/ under /d", "DatasetNotFound: no train/ under /d"),
        ("first\nAssertionError", "AssertionError"),
        ("Saved: all\nWarning: few CPUs", None),
    ],
)
def test_last_error_of_a_process(output: str, line: str | None) -> None:
    assert last_error_line(output) == line


class Damaged:
    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> None:
        raise ValueError("no label for a.JPEG\nin labels.csv")


def test_an_error_of_a_worker_is_named_as_in_the_worker() -> None:
    with pytest.raises(ValueError) as raised:
        list(DataLoader(Damaged(), num_workers=1))  # type: ignore[arg-type]
    assert named_first_line(raised.value) == "ValueError: no label for a.JPEG"
