import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn

from imagenet_opt.probe.alternation import Alternation, Turns, TurnsOfFit, alternate

BATCH = 4


class Model(LightningModule):
    """Notes the name of its fit at each step. precision: of float32 matrix products, set by this fit."""

    def __init__(self, name: str, steps: list[str], precision: str = "highest", fails_at: int | None = None) -> None:
        super().__init__()
        self.net, self.name, self.steps = nn.Linear(3, 1), name, steps
        self.precision, self.fails_at = precision, fails_at

    def on_fit_start(self) -> None:
        torch.set_float32_matmul_precision(self.precision)

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        if batch_idx == self.fails_at:
            raise ValueError(f"step {batch_idx}")
        assert torch.get_float32_matmul_precision() == self.precision
        self.steps.append(self.name)
        return self.net(batch).sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit_of(model: Model, num_batches: int = 1_000_000) -> Callable[[Turns], None]:
    class Batches:
        def __len__(self) -> int:
            return num_batches

        def __iter__(self) -> Iterator[Tensor]:
            return (torch.ones(BATCH, 3) for _ in range(num_batches))

    def fit(turns: Turns) -> None:
        trainer = Trainer(
            accelerator="cpu",
            max_epochs=1,
            logger=False,
            callbacks=[TurnsOfFit(turns)],
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(model, train_dataloaders=Batches())

    return fit


def test_fits_take_turns_of_one_step_with_their_own_switches() -> None:
    steps: list[str] = []
    before = torch.get_float32_matmul_precision()
    fits = {name: fit_of(Model(name, steps, precision)) for name, precision in (("a", "high"), ("b", "highest"))}
    with Alternation(fits, window_seconds=0.2, on_gpu=False) as turns:
        turns.warm_up()
        assert list(dict.fromkeys(steps)) == ["a", "b"]
        num_warm, windows = len(steps), turns.cycle()
        assert torch.get_float32_matmul_precision() == before
        trained = steps[num_warm:]
    assert trained[:6] in (["b", "a", "a", "b", "b", "a"], ["a", "b", "b", "a", "a", "b"])
    assert windows.keys() == {"a", "b"} and all(min(window) > 0 for window in windows.values())
    assert turns.failures == {}
    assert not {"a", "b"} & {thread.name for thread in threading.enumerate()}


def test_names_alternate_until_they_have_had_the_seconds_on_average() -> None:
    """A slow one and a fast one have equally many turns, and one without further turns does not stop the others."""
    given: list[str] = []
    seconds = {"slow": 3.0, "fast": 1.0}

    def turn(name: str) -> tuple[float, float] | None:
        given.append(name)
        return (10.0, seconds[name]) if name in seconds else None

    assert alternate(["slow", "ended", "fast"], turn, seconds=5.0) == {"slow": (30.0, 9.0), "fast": (30.0, 3.0)}
    first, others = given[:3], [name for name in given[:3] if name != "ended"]
    assert sorted(first) == ["ended", "fast", "slow"] and given[3:] == [*others[::-1], *others]
    assert alternate(["slow", "fast"], turn, seconds=5.0, multiple=2) == {"slow": (40.0, 12.0), "fast": (40.0, 4.0)}


def test_names_begin_in_a_random_order() -> None:
    """The first and the last of an order sometimes have two turns in a row, so no name is always the first."""

    def first() -> str:
        given: list[str] = []

        def turn(name: str) -> tuple[float, float]:
            given.append(name)
            return 1.0, 1.0

        alternate("abcd", turn, seconds=0.5)
        return given[0]

    assert {first() for _ in range(99)} == set("abcd")


def test_a_fit_that_fails_leaves_its_turns_to_the_others() -> None:
    steps: list[str] = []
    fits = {"bad": fit_of(Model("bad", steps, fails_at=2)), "good": fit_of(Model("good", steps))}
    with Alternation(fits, window_seconds=0.01, on_gpu=False) as turns:
        turns.warm_up()
        assert turns.cycle().keys() == {"good"}
    assert isinstance(turns.failures["bad"], ValueError)
    assert str(turns.failures["bad"]) == "step 2"


def test_a_fit_whose_data_ends_has_failed() -> None:
    with Alternation({"short": fit_of(Model("short", []), num_batches=3)}, window_seconds=0.01, on_gpu=False) as turns:
        turns.warm_up()
    assert "ended by itself" in str(turns.failures["short"])


def test_a_cycle_counts_the_images_and_seconds_of_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    class Slow(Model):
        def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
            nonlocal now
            now += 0.5
            return super().training_step(batch, batch_idx)

    monkeypatch.setattr("imagenet_opt.probe.alternation.time.perf_counter", lambda: now)
    with Alternation({"slow": fit_of(Slow("slow", []))}, window_seconds=2.0, on_gpu=False) as turns:
        turns.warm_up()
        assert turns.cycle() == {"slow": (4 * BATCH, pytest.approx(2.0))}
