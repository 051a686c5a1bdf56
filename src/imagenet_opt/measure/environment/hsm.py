"""Files whose content is not in Lustre but in an archive behind it, as an S3 bucket, until someone reads them."""

import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence

from imagenet_opt.measure.data_place import DataPlace
from imagenet_opt.measure.diagnosis import Finding

RELEASED = 0x4
"""HS_RELEASED: no content in Lustre. Source: enum hsm_states, llapi_hsm_state_get(3)."""
_LOST = 0x40
_LINE = re.compile(r"^(?P<file>.*): \((?P<bits>0x[0-9a-fA-F]+)\)[^()]*$")
_TIMEOUT_SECONDS = 20


def read_hsm_states(files: Sequence[str]) -> dict[str, int] | None:
    """File -> its HSM bits, by `lfs hsm_state`, else by what the files' blocks say; None where none can be read."""
    if files and (lfs := shutil.which("lfs")):
        try:
            done = subprocess.run(
                [lfs, "hsm_state", *files], capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_SECONDS
            )
        except (OSError, subprocess.TimeoutExpired):
            return _states_of_blocks(files)
        if states := parse_hsm_states(done.stdout):
            return states
    return _states_of_blocks(files)


def parse_hsm_states(text: str) -> dict[str, int]:
    """Of lines such as "/fsx/a.JPEG: (0x0000000d) released exists archived, archive_id:1"."""
    found = (_LINE.match(line) for line in text.split("\n"))
    return {match["file"]: int(match["bits"], 16) for match in found if match}


def _states_of_blocks(files: Sequence[str]) -> dict[str, int] | None:
    states = {}
    for file in files:
        try:
            stat = os.stat(file)
        except OSError:
            continue
        states[file] = RELEASED * looks_released(size=stat.st_size, num_blocks=stat.st_blocks)
    return states or None


def looks_released(*, size: int, num_blocks: int) -> bool:
    """Whether a file on Lustre has content but no room for it. num_blocks: of 512 bytes.

    A released file has none, or one where the server feigns it so that tar does not take the file for a hole.
    """
    return size > 512 and num_blocks <= 1


def check_released(states: Mapping[str, int] | None, data: DataPlace, kind: str) -> Finding:
    """kind: of file system; only on Lustre is there a state to be had."""
    if kind != "lustre":
        return Finding("released_files", None, f"only Lustre tells of archived files; this is {kind}", environment=True)
    if not states:
        return Finding(
            "released_files", None, "none of the files looked at has a state that can be read", environment=True
        )
    count = Counter("lost" if bits & _LOST else "released" if bits & RELEASED else "there" for bits in states.values())
    evidence = (
        f"{count['released']} of {len(states)} files looked at ({count['released'] / len(states):.0%}) are released"
    )
    if count["lost"]:
        evidence += f", {count['lost']} more are lost in the archive"
    if not count["released"]:
        return Finding("released_files", bool(count["lost"]), evidence, environment=True)
    return Finding(
        "released_files",
        True,
        f"{evidence}: their content is in the archive behind the mount and comes at the first touch",
        remedy="fetch all files before training, many at a time",
        commands=(data.hydrate(),),
        environment=True,
    )
