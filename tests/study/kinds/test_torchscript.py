from pathlib import Path
from typing import Any

import pytest
import torch

from imagenet_opt.study.kinds import torchscript
from imagenet_opt.study.kinds.torchscript import EAGER, WAYS
from tests.study.studies import TINY, table_of


@pytest.mark.slow
def test_all_forms_compute_the_same_and_one_that_torch_refuses_has_no_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch.compile runs uncompiled here, since compiling would take a minute."""
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    ways = WAYS | {"refused": lambda net, images: torch.jit.script(lambda *more: more)}
    monkeypatch.setattr(torchscript, "WAYS", ways)
    table = table_of("torchscript", tmp_path, *TINY, "trainer.accelerator=cpu", seconds=0.01, repeats=1)
    rows: dict[str, Any] = {str(row[0]): dict(zip(table.headings, row, strict=True)) for row in table.rows}
    assert tuple(rows) == (*WAYS, "refused") and rows.pop("refused")["images/s"] is None
    assert table.notes[0].startswith("refused: ")
    for row in rows.values():
        assert row["first loss"] == pytest.approx(rows[EAGER]["first loss"], rel=1e-4)
        assert row["images/s"] > 0 and row["until it runs, s"] > 0 and row["again, s"] > 0
