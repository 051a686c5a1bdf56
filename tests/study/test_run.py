from imagenet_opt.display.table import Column, Table
from imagenet_opt.study.run import how_to_decide


def test_a_table_that_says_undecided_says_once_how_to_decide() -> None:
    columns = (Column("step"), Column("worth"))
    table = Table("steps", columns, (("a", "1.10 x (0.97 to 3.36) undecided"), ("b", "undecided")), ("a note",))
    assert how_to_decide(table).notes == ("a note", "To decide what is undecided, raise --repeats.")
    clear = Table("steps", columns, (("a", "1.00 x (0.99 to 1.01) no difference"),), ("a note",))
    assert how_to_decide(clear) == clear
