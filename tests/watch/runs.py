"""Run folders as they are while a run trains."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

COLUMNS = (
    "step,epoch,train/loss,train/acc1,throughput/it_per_second,throughput/images_per_second,"
    "throughput/data_wait_fraction,gpu/utilization_percent,lr,val/loss,val/acc1"
)
LOG = "2026-01-01 00:00:00,000 INFO callbacks.progress_bar: epoch 3/8  step 20/40  loss 0.966  lr 0.048  1:20:32 left\n"


def write_run(folder: Path, *, num_rows: int = 30) -> Path:
    """A run with a row every 10 steps, whose loss in row i is 3 - i / 100; validation in the row before the last."""
    folder.mkdir(parents=True)
    rows = [f"{10 * i + 9},{i // 10},{3 - i / 100},0.{100 + i},2.5,1234.5,0.256,87.5,0.0123,," for i in range(num_rows)]
    rows[-2] = f"{rows[-2].removesuffix(',,')},2.125,0.4375"
    (folder / "metrics.csv").write_text("\n".join([COLUMNS, *rows]) + "\n")
    (folder / "train.log").write_text(LOG)
    return folder


def add_row(folder: Path, step: int, loss: float) -> None:
    with (folder / "metrics.csv").open("a") as file:
        file.write(f"{step},2,{loss},0.9,2.5,1234.5,0.256,87.5,0.0123,,\n")


@contextmanager
def training(folder: Path) -> Iterator[None]:
    """Hold the lock of the run, as its process does."""
    with (folder / ".claim").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
