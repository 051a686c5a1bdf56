"""Files whose content is not in Lustre but in an archive behind it, as an S3 bucket, until someone reads them."""

from collections import Counter
from collections.abc import Mapping

from imagenet_opt.measure.data_place import DataPlace
from imagenet_opt.measure.diagnosis import Finding
from imagenet_opt.measure.storage.lustre import _LOST, RELEASED


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
