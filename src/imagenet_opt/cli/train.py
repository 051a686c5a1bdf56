"""`imagenet-opt train`: runs train.py, also where the package was installed without a checkout."""

import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from imagenet_opt.cli.main import COMMANDS, run
from imagenet_opt.cli.mistakes import report_mistakes
from imagenet_opt.config.overrides import config_folder, typed

HELP = ""
"""train.py prints its own help."""


def main(argv: list[str], *, project: Path | None = None, allow_targets: Sequence[str] = ()) -> None:
    """Run train.py with the arguments `argv`.

    project: a folder whose conf/ is searched beside the package's, and whose modules can be imported, in the processes
    of a sweep too. With it, the first word may be another command, such as doctor. allow_targets: names of these
    modules that a configuration may build.
    """
    typed[:] = sys.argv
    script = config_folder().with_name("train.py")
    if project is not None:
        project = project.resolve()
        sys.path.insert(0, str(project))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(project), os.environ.get("PYTHONPATH"))))
        allowed = f"allow_targets=[{','.join(allow_targets)}]"
        if argv and argv[0] in COMMANDS:
            words = [f"hydra.searchpath=[file://{project / 'conf'}]", allowed, *argv[1:]]
            report_mistakes(lambda: run(argv[0], words))
            return
        argv = [f"--config-dir={project / 'conf'}", allowed, *argv]
    sys.argv = [str(script), *argv]
    runpy.run_path(str(script), run_name="__main__")
