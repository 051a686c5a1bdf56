"""The cases by name."""

from collections.abc import Callable
from typing import NamedTuple

from suites.faults.runs import Trial


class Case(NamedTuple):
    """`attempt` makes the fault, asserts how it ends and returns that in words; it may raise NotTried."""

    title: str
    attempt: Callable[[Trial], str]


CASES: dict[str, Case] = {}


def case(title: str) -> Callable[[Callable[[Trial], str]], Callable[[Trial], str]]:
    def register(attempt: Callable[[Trial], str]) -> Callable[[Trial], str]:
        CASES[attempt.__name__] = Case(title, attempt)
        return attempt

    return register
