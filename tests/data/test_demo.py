"""The demo images: layout, determinism, repair, and folders with other content."""

import hashlib
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from imagenet_opt.data.demo import ensure_demo
from imagenet_opt.data.demo_images import DEMO_CLASSES, draw
from imagenet_opt.errors import ConfigError


def files_of(folder: Path) -> dict[str, str]:
    """Digest of each image by its path below `folder`."""
    images = sorted(folder.rglob("*.jpg"))
    return {str(image.relative_to(folder)): hashlib.sha256(image.read_bytes()).hexdigest() for image in images}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure_demo(tmp_path_factory.mktemp("cache") / "demo", num_train=40, num_val=20)


def test_classes_are_balanced_folders_of_jpegs_of_many_sizes(demo: Path) -> None:
    counts = Counter(image.parent.relative_to(demo).as_posix() for image in demo.rglob("*.jpg"))
    assert counts == {f"{split}/{name}": n for split, n in (("train", 4), ("val", 2)) for name in DEMO_CLASSES}
    assert len(DEMO_CLASSES) == 10 and list(DEMO_CLASSES) == sorted(DEMO_CLASSES)
    sizes = []
    for path in demo.rglob("*.jpg"):
        with Image.open(path) as image:
            image.load()
            assert image.format == "JPEG" and image.mode in ("RGB", "L")
            sizes.append(image.size)
    widths, heights = np.array(sizes).T
    assert len(set(sizes)) > 50
    assert np.minimum(widths, heights).min() >= 72 and np.minimum(widths, heights).max() <= 160
    assert (widths / heights).min() < 3 / 4 and (widths / heights).max() > 4 / 3


def test_an_uneven_number_of_images_is_spread_over_the_classes(tmp_path: Path) -> None:
    ensure_demo(tmp_path / "demo", num_train=13, num_val=10)
    per_class = [len(list((tmp_path / "demo/train" / name).iterdir())) for name in DEMO_CLASSES]
    assert sum(per_class) == 13 and max(per_class) - min(per_class) == 1


def test_some_images_are_grey() -> None:
    grey = sum(draw(0, 0, index)[0].mode == "L" for index in range(200))
    assert 1 <= grey <= 20


def test_the_mean_colour_does_not_depend_on_the_class() -> None:
    images = [[draw(0, label, index)[0].convert("RGB") for index in range(30)] for label in range(10)]
    means = np.array([[np.asarray(image).mean(axis=(0, 1)) for image in of_class] for of_class in images])
    between, within = means.mean(axis=1).var(axis=0), means.var(axis=1).mean(axis=0)
    assert (between < 0.15 * within).all()


def test_any_number_of_processes_draws_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    many = ensure_demo(tmp_path / "many", num_train=200, num_val=10)
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "1")
    one = ensure_demo(tmp_path / "one", num_train=200, num_val=10)
    assert files_of(many) == files_of(one) and len(set(files_of(one).values())) == 210


def test_a_larger_set_begins_with_the_smaller_and_is_replaced_by_it(demo: Path, tmp_path: Path) -> None:
    large = ensure_demo(tmp_path / "demo", num_train=40, num_val=20)
    small = files_of(ensure_demo(large, num_train=20, num_val=10))
    assert len(small) == 30 and small.items() <= files_of(demo).items()


def test_a_complete_folder_is_left_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = ensure_demo(tmp_path / "demo", num_train=10, num_val=10)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" demo images")[0] for line in lines if line] == ["drawing 20", "drew 20"]
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert ensure_demo(folder, num_train=10, num_val=10) == folder
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    assert capsys.readouterr().err == ""


def test_a_missing_file_is_drawn_again(tmp_path: Path) -> None:
    folder = ensure_demo(tmp_path / "demo", num_train=10, num_val=10)
    before = files_of(folder)
    (folder / "val" / "rings" / "00000.jpg").unlink()
    assert files_of(ensure_demo(folder, num_train=10, num_val=10)) == before
    assert list(tmp_path.iterdir()) == [folder]


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    assert len(files_of(ensure_demo(tmp_path, num_train=10, num_val=10))) == 20


@pytest.mark.parametrize("content", ["train/cat/photo.jpg", "notes.txt"])
def test_a_folder_with_other_content_is_refused(tmp_path: Path, content: str) -> None:
    precious = tmp_path / "demo" / content
    precious.parent.mkdir(parents=True)
    precious.write_text("precious")
    with pytest.raises(ConfigError, match=r"the folder has other content.*data\.cache_dir"):
        ensure_demo(tmp_path / "demo", num_train=10, num_val=10)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [precious]


def test_a_folder_without_the_marker_is_refused(tmp_path: Path) -> None:
    folder = ensure_demo(tmp_path / "demo", num_train=10, num_val=10)
    next(folder.glob("*.json")).unlink()
    with pytest.raises(ConfigError, match=r"no imagenet_opt_demo\.json in it"):
        ensure_demo(folder, num_train=10, num_val=10)


@pytest.mark.parametrize(
    ("folder", "num_val", "words"),
    [
        ("file/demo", 10, r"cannot write the demo images.*set data\.cache_dir"),
        ("demo", 9, r"data\.num_val=9: the demo needs at least 10"),
    ],
)
def test_an_unwritable_folder_and_too_few_images_are_refused(
    tmp_path: Path, folder: str, num_val: int, words: str
) -> None:
    (tmp_path / "file").write_text("a file")
    with pytest.raises(ConfigError, match=words):
        ensure_demo(tmp_path / folder, num_train=10, num_val=num_val)


def test_three_processes_at_once_leave_one_whole_folder(demo: Path, tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    code = (
        "import sys; from pathlib import Path; from imagenet_opt.data.demo import ensure_demo;"
        "ensure_demo(Path(sys.argv[1]), num_train=40, num_val=20); assert 'torch' not in sys.modules"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code, str(folder)]) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert files_of(folder) == files_of(demo) and list(tmp_path.iterdir()) == [folder]
