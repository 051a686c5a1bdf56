"""Which files of Lustre are only in its archive (HSM)."""

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from imagenet_opt import machine

RELEASED = 0x4
"""HS_RELEASED: no content in Lustre. Source: enum hsm_states, llapi_hsm_state_get(3)."""
LOST = 0x40
"""HS_LOST: the copy in the archive is lost. Source: llapi_hsm_state_get(3)."""
_LINE = re.compile(r"^(?P<file>.*): \((?P<bits>0x[0-9a-fA-F]+)\)[^()]*$")
_TIMEOUT_SECONDS = 20


def read_hsm_states(files: Sequence[str]) -> dict[str, int] | None:
    """File -> its HSM bits, by `lfs hsm_state`, else by the number of blocks; None if no state can be read."""
    states: dict[str, int] = {}
    if files and (lfs := shutil.which("lfs")):
        with suppress(OSError, subprocess.TimeoutExpired):
            command = [lfs, "hsm_state", *files]
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_SECONDS)
            states = parse_hsm_states(done.stdout)
    return states or _states_of_blocks(files)


def parse_hsm_states(text: str) -> dict[str, int]:
    """File -> its HSM bits, from lines such as "/fsx/a.JPEG: (0x0000000d) released exists archived, archive_id:1"."""
    matches = (_LINE.match(line) for line in text.split("\n"))
    return {match["file"]: int(match["bits"], 16) for match in matches if match}


def _states_of_blocks(files: Sequence[str]) -> dict[str, int] | None:
    states = {}
    for file in files:
        with suppress(OSError):
            stat = os.stat(file)
            states[file] = RELEASED * looks_released(size=stat.st_size, num_blocks=stat.st_blocks)
    return states or None


def looks_released(*, size: int, num_blocks: int) -> bool:
    """Whether a file on Lustre has a size but no blocks. num_blocks: number of blocks of 512 bytes.

    A released file has no blocks, or one block that the server reports so that tar does not treat the file as sparse.
    """
    return size > 512 and num_blocks <= 1


def is_lustre(folder: Path) -> bool:
    return machine.mount_of(str(folder)).endswith("(lustre)")
