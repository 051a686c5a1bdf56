from collections.abc import Callable
from pathlib import Path

from imagenet_opt.doctor.first_look import check_environment
from imagenet_opt.doctor.environment.setup import Setup


def test_every_check_answers_once_on_any_machine(setup: Callable[..., Setup], tmp_path: Path) -> None:
    file = tmp_path / "a.JPEG"
    file.write_bytes(b"x" * 1000)
    found = check_environment(setup(folder=str(tmp_path), files=(str(file),), cuda_index=None))
    assert len({finding.rule for finding in found}) == len(found) >= 10
    assert all(finding.evidence for finding in found)
    assert all(finding.remedy for finding in found if finding.fired)


def test_a_folder_that_does_not_exist_is_no_error(setup: Callable[..., Setup]) -> None:
    assert check_environment(setup(folder="/absent/folder", files=("/absent/folder/a.JPEG",), cuda_index=None))
