"""Keeps what torch.compile made: in a private cache of this machine, and in a file with which another machine starts.

Stored code is code: torch unpickles it and runs its kernels. docs/trust.md says whom a run trusts with it.
"""

import json
import os
import stat
import sys
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path

import torch

from imagenet_opt.atomic_file import replacing
from imagenet_opt.errors import first_line
from imagenet_opt.private_api import default_code_folder

_CACHE = "TORCHINDUCTOR_CACHE_DIR"
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def use_private_cache(folder: Path, say: Callable[[str], None]) -> None:
    """Let torch.compile keep its code in `folder`, which only this user may enter. Torch's own default is a folder in
    /tmp whose name anyone can guess and make first. A TORCHINDUCTOR_CACHE_DIR of the user stays.

    Without such a folder the code goes to a new temporary folder, and a line says so.
    """
    if os.environ.get(_CACHE) not in (None, default_code_folder()):
        return
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            raise PermissionError("it is not a folder of this user")
        folder.chmod(0o700)
    except OSError as error:
        say(f"acceleration: {folder} keeps no compiled code: {error}; set TORCHINDUCTOR_CACHE_DIR to another folder")
        folder = Path(tempfile.mkdtemp(prefix="imagenet_opt_compiled_"))
    os.environ[_CACHE] = str(folder)


def load_code(file: Path, device: torch.device, say: Callable[[str], None]) -> None:
    """Give torch.compile the code in `file`; an absent file gives none. One line tells why a file is not used: others
    can write it, it is damaged, or of another torch or device. Then all is compiled as without the file."""
    try:
        with file.open("rb") as opened:
            status = os.fstat(opened.fileno())
            if status.st_uid != os.getuid() or status.st_mode & _OTHERS_WRITE:
                raise ValueError("it is not yours alone to write; chmod 600 if you trust it")
            about, code = opened.readline(), opened.read()
        if (made := json.loads(about)) != (here := _about(code, device)):
            differs = next(key for key in here if made.get(key) != here[key])
            raise ValueError(f"{differs} is {here[differs]}, in the file {made.get(differs)}")
        if torch.compiler.load_cache_artifacts(code) is None:
            raise ValueError("torch cannot read it")
    except FileNotFoundError:
        return
    except Exception as error:  # of torch's readers, of many types
        say(f"acceleration: the compiled code in {file} is not used: {first_line(error)}")


def save_code(file: Path, device: torch.device, say: Callable[[str], None]) -> None:
    """Write all that this process has compiled to `file`, for the user alone."""
    try:
        if (artifacts := torch.compiler.save_cache_artifacts()) is None:
            return
        code = artifacts[0]
        with replacing(file) as fresh:
            fresh.touch(mode=0o600)
            fresh.write_bytes(json.dumps(_about(code, device)).encode() + b"\n" + code)
    except Exception as error:  # a run does without
        say(f"acceleration: the compiled code is not kept in {file}: {first_line(error)}")


def _about(code: bytes, device: torch.device) -> dict[str, str]:
    """What must be equal where code is made and where it runs."""
    on_gpu = device.type == "cuda"
    return {
        "torch": torch.__version__,
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "device": torch.cuda.get_device_name(device) if on_gpu else f"CPU, {torch.backends.cpu.get_cpu_capability()}",
        "checksum": f"{zlib.crc32(code):08x}",
    }
