from pathlib import Path
from typing import Any

import pytest

from imagenet_opt.study.kinds.torchscript import EAGER, WAYS, run
from tests.study.studies import TINY, small_request

BOTH = "torch.compile of torch.jit.script"


@pytest.mark.slow
def test_all_forms_compute_the_same_or_say_why_not(tmp_path: Path) -> None:
    """torch.compile runs uncompiled here, since compiling would take a minute; torch 2.13 and later refuse to compile
    a scripted network."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHDYNAMO_DISABLE", "1")
        (table,) = run(small_request("torchscript", tmp_path, *TINY, "trainer.accelerator=cpu", repeats=1))
    rows: dict[str, Any] = {str(row[0]): dict(zip(table.headings, row, strict=True)) for row in table.rows}
    assert tuple(rows) == tuple(WAYS)
    for name, row in rows.items():
        if row["images/s"] is None:
            assert name == BOTH and any(note.startswith(f"{BOTH}: ") for note in table.notes)
        else:
            assert row["first loss"] == pytest.approx(rows[EAGER]["first loss"], rel=1e-4)
            assert row["until it runs, s"] > 0 and row["again, s"] > 0
