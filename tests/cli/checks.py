"""The check command as tests call it."""

from collections.abc import Callable

Check = Callable[..., tuple[int, dict[str, dict[str, object]], str]]
