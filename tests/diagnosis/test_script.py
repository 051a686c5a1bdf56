"""Unchanged scripts, each diagnosed in a process of its own."""

import json
from pathlib import Path

import psutil
import pytest

from imagenet_opt.cli.diagnose import main, parse
from imagenet_opt.errors import ConfigError, ImagenetOptError, TrainingError

TRAINS = """
import sys, time, torch
from torch.utils.data import DataLoader

class Waits(torch.utils.data.Dataset):
    def __len__(self): return 40
    def __getitem__(self, i):
        time.sleep(0.02)
        return torch.zeros(4), 0

assert sys.argv[1:] == ["--lr", "0.1"] and __name__ == "__main__"
net = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
with torch.no_grad():
    for images, labels in DataLoader(Waits(), batch_size=4):
        net(images)
for epoch in range(1000):
    for images, labels in DataLoader(Waits(), batch_size=4, num_workers=2, shuffle=True):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(images), labels).backward()
        optimizer.step()
"""
ENDS = TRAINS.replace(
    "optimizer.step()\n",
    "optimizer.step()\n        steps = globals().get('steps', 0) + 1\n        if steps == 4: sys.exit(3)\n",
)
BAD = {
    "no loader": ("print('ready')", ConfigError, "no loop over a DataLoader"),
    "raises": ("raise ValueError('no data')", TrainingError, "ValueError: no data"),
    "killed": ("import os; os.kill(os.getpid(), 9)", TrainingError, "SIGKILL"),
    "only evaluates": (ENDS.partition("for epoch")[0], ConfigError, "none that trains"),
    "ends early": (ENDS, TrainingError, "status 3"),
    "leaves a process": (
        "import subprocess; subprocess.Popen(['sleep', '77'], start_new_session=True)",
        ConfigError,
        "no loop",
    ),
}  # fmt: skip


def descendants() -> list[str]:
    return [process.name() for process in psutil.Process().children(recursive=True)]


@pytest.mark.slow
def test_a_script_is_diagnosed_and_ended(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script, file = tmp_path / "train.py", tmp_path / "diagnosis.json"
    script.write_text(TRAINS)
    before = descendants()
    main(["--seconds", "6", str(script), "--lr", "0.1", "--json", str(file)])
    written = json.loads(file.read_text())
    assert written["cause"] in ("storage", "few_workers") and written["measured"]["num_workers"] == 2
    assert "do not use its weights" in capfd.readouterr().out
    assert descendants() == before


@pytest.mark.slow
def test_a_script_that_counts_the_batches_of_an_epoch(tmp_path: Path) -> None:
    script, file = tmp_path / "train.py", tmp_path / "diagnosis.json"
    epochs, _, loop = TRAINS.partition("for epoch in range(1000):\n")[2].partition(":\n")
    loader = epochs.partition(" in ")[2]
    counts = f"""
loader = {loader}
for epoch in range(1000):
    for num, (images, labels) in enumerate(loader):
        assert num < len(loader)
"""
    script.write_text(TRAINS.partition("for epoch")[0] + counts + loop)
    main(["--seconds", "6", str(script), "--lr", "0.1", "--json", str(file)])
    assert json.loads(file.read_text())["measured"]["loop"]


@pytest.mark.slow
@pytest.mark.parametrize("name", BAD)
def test_a_bad_script_ends_in_one_line(name: str, tmp_path: Path) -> None:
    text, error, says = BAD[name]
    script = tmp_path / "train.py"
    script.write_text(text)
    before = descendants()
    with pytest.raises(error, match=says) as caught:
        main(["--seconds", "5", str(script), "--lr", "0.1"])
    assert isinstance(caught.value, ImagenetOptError) and str(script) in str(caught.value)
    assert descendants() == before


@pytest.mark.parametrize("words", [["nothing.py"], [], ["--lr", "0.1"], ["--json"], ["--seconds=2", "nothing.py"]])
def test_a_command_without_a_script_ends_in_one_line(words: list[str]) -> None:
    with pytest.raises(ConfigError, match="imagenet-opt diagnose"):
        main(words)


def test_words_after_two_dashes_are_the_scripts() -> None:
    options = parse(["--seconds", "9", "--", __file__, "--json", "x"])
    assert (options.seconds, options.json, options.arguments) == (9.0, None, ["--json", "x"])
