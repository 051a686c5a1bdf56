"""What others have named cannot break a line."""

import pytest

from imagenet_opt.errors import printable


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("n01440764/a b ß 猫 🐈.JPEG", "n01440764/a b ß 猫 🐈.JPEG"),
        ("two\nlines\r\t", "two\\nlines\\r\\t"),
        ("\x1b[31mred\x1b[0m \x9b2J \x00", "\\x1b[31mred\\x1b[0m \\x9b2J \\x00"),
        ("\udcff.JPEG", "\\udcff.JPEG"),
        ("a\u202egepj\u2028b", "a\\u202egepj\\u2028b"),
    ],
)
def test_control_characters_and_surrogates_are_escaped_and_the_rest_is_not(name: str, shown: str) -> None:
    assert printable(name) == shown
    assert printable(name).encode().decode() == shown
