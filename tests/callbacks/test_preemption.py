"""A run stops cleanly on request, and resumes like an undisturbed run."""

import json
import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback

from imagenet_opt.callbacks.checkpoint import Checkpoint
from imagenet_opt.callbacks.ema import Ema
from imagenet_opt.callbacks.preemption import Preemption
from imagenet_opt.errors import Preempted
from tests.callbacks.conftest import AtCall, Plain, Project, alike, opened
from tests.processes import run_forked


class Scored(Plain):
    """Logs from validation, and has the same batches whether it was resumed or not."""

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        self.log("val/acc1", self.net(batch[0]).mean())


def fit(project: Project, folder: Path, *more: Callback, **options: Any) -> list[tuple[int, dict[str, float]]]:
    project.logger.rows.clear()
    callbacks = [Ema(decay=0.5), *more, Preemption(), Checkpoint(folder=str(folder))]
    project.fit(*callbacks, module=Scored(), data=alike(), **options)
    return logged(project)


def logged(project: Project) -> list[tuple[int, dict[str, float]]]:
    """Rows without the seconds that saving took, which are never the same twice."""
    rows = [(i, {n: v for n, v in row.items() if not n.startswith("checkpoint/")}) for i, row in project.logger.rows]
    return [(step, row) for step, row in rows if row.keys() - {"epoch"}]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[int, dict[str, float]]]]:
    """The folder and the logged rows of a run that nobody stops."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, fit(Project(), folder)


@pytest.mark.parametrize(
    ("hook", "call"),
    [
        ("on_train_batch_start", 1),
        ("on_before_optimizer_step", 1),
        ("on_train_batch_end", 10),
        ("on_validation_batch_end", 1),
        ("on_train_epoch_end", 1),
    ],
)
def test_stopped_at_any_hook_it_ends_as_the_whole_run(project, whole, tmp_path: Path, hook: str, call: int) -> None:
    with pytest.raises(Preempted, match="SIGTERM"):
        fit(project, tmp_path, AtCall(hook, call, partial(signal.raise_signal, signal.SIGTERM)))
    rows = logged(project)
    last = tmp_path / "last.ckpt"
    reached = opened(last)["global_step"] if last.exists() else 0
    rows = [row for row in rows if row[0] < reached] + fit(project, tmp_path, ckpt_path=last if last.exists() else None)
    whole_folder, whole_rows = whole
    expected, found = opened(whole_folder / "last.ckpt"), opened(last)
    for key in ("state_dict", "current_model_state", "optimizer_states", "loops", "epoch", "global_step"):
        torch.testing.assert_close(expected[key], found[key], rtol=0, atol=0)
    assert opened(whole_folder / "best.ckpt")["global_step"] == opened(tmp_path / "best.ckpt")["global_step"]
    assert rows == whole_rows


TWO = """
import json, os, signal, sys
from lightning.pytorch import Callback, Trainer
from torch.utils.data import DataLoader
from imagenet_opt.callbacks.checkpoint import Checkpoint
from imagenet_opt.callbacks.preemption import Preemption
from imagenet_opt.errors import Preempted
from tests.callbacks.conftest import Plain, images

class Told(Callback):
    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if trainer.global_rank == 1 and batch_idx == 3:
            signal.raise_signal(signal.SIGTERM)

class Agreeing(Plain):
    def on_save_checkpoint(self, checkpoint):  # as the classifier does: every process takes part in a save
        assert self.trainer.strategy.reduce_boolean_decision(True)

trainer = Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=100, logger=False, enable_progress_bar=False,
                  enable_model_summary=False, callbacks=[Told(), Preemption(), Checkpoint(folder=sys.argv[1])])
try:
    trainer.fit(Agreeing(), DataLoader(images(), batch_size=4))
except Preempted as error:
    with open(os.path.join(sys.argv[1], f"rank{trainer.global_rank}.json.part"), "w") as file:
        json.dump([trainer.global_step, str(error)], file)
    os.rename(file.name, file.name.removesuffix(".part"))
"""


@pytest.mark.slow
def test_two_processes_stop_at_the_same_batch_when_one_gets_the_signal(tmp_path: Path) -> None:
    (tmp_path / "two.py").write_text(TWO)
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = run_forked([str(tmp_path / "two.py"), str(tmp_path)], cwd=tmp_path, environment=environment)
    assert done.returncode == 0, done.stderr
    deadline = time.monotonic() + 60  # the second process may end later
    while not (tmp_path / "rank1.json").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    first, second = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1))
    assert first == second
    assert first[1] == "SIGTERM" and 4 <= first[0] <= 5
    assert opened(tmp_path / "last.ckpt")["global_step"] == first[0]
