"""Counts the operations that would each launch work on a GPU."""

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class Launches(TorchDispatchMode):
    """names: of the operations in torch's dispatcher that write memory; views and empty tensors do not count."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, aliases = func.overloadpacket.__name__, [each.alias_info for each in func._schema.returns]
        is_view = any(alias is not None and not alias.is_write for alias in aliases)
        if not is_view and not name.startswith(("empty", "new_empty")):
            self.names.append(name)
        return func(*args, **(kwargs or {}))
