from pathlib import Path
from typing import Any

import pytest

from imagenet_opt.study.kinds.torchscript import EAGER, WAYS
from tests.study.studies import TINY, table_of


@pytest.mark.slow
def test_all_forms_compute_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile runs uncompiled here, since compiling would take a minute."""
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    table = table_of("torchscript", tmp_path, *TINY, "trainer.accelerator=cpu", seconds=0.01, repeats=1)
    rows: dict[str, Any] = {str(row[0]): dict(zip(table.headings, row, strict=True)) for row in table.rows}
    assert tuple(rows) == tuple(WAYS)
    for row in rows.values():
        assert row["first loss"] == pytest.approx(rows[EAGER]["first loss"], rel=1e-4)
        assert row["images/s"] > 0 and row["until it runs, s"] > 0 and row["again, s"] > 0
