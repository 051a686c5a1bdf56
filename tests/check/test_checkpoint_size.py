"""The size of a checkpoint that is computed before a run."""

from pathlib import Path

import pytest

from imagenet_opt.check.checkpoint_size import checkpoint_bytes
from imagenet_opt.training.build_run import build_run
from tests.config.configs import tiny


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param(("callbacks=[checkpoint]",), id="momentum"),
        pytest.param(("callbacks=[checkpoint,ema]", "optimizer=adamw"), id="two moments, averaged weights"),
    ],
)
def test_the_size_is_that_of_the_file(overrides: tuple[str, ...], images_root: Path, tmp_path: Path) -> None:
    config = tiny(tmp_path, images_root, "trainer.max_steps=1", "trainer.limit_val_batches=0", *overrides)
    computed = checkpoint_bytes(config, num_classes=3)
    run = build_run(config)
    run.trainer.fit(run.model, datamodule=run.data)
    written = (run.folder / "last.ckpt").stat().st_size
    assert computed is not None
    assert computed <= written <= 1.1 * computed + 60_000  # names, and the index of the archive
