"""The step of the LightningModule against a loop written out."""

from functools import partial

import pytest
import timm
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.plugins import MixedPrecision
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR

from imagenet_opt.errors import ConfigError
from imagenet_opt.model.classifier import Classifier
from imagenet_opt.model.schedule import cosine
from tests.callbacks.conftest import Memory
from tests.model.conftest import OPTIMIZER, Loader, Synced, batches, fit, network


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_weights_are_those_of_a_plain_loop(smoothing: float) -> None:
    _, module = fit(network(), batches(4), label_smoothing=smoothing)
    net = network()
    weights, biases = [p for p in net.parameters() if p.ndim > 1], [p for p in net.parameters() if p.ndim == 1]
    optimizer = SGD([{"params": weights, "weight_decay": 1e-3}, {"params": biases}], lr=0.125, momentum=0.9)
    scheduler = LambdaLR(optimizer, partial(cosine, num_steps=8, steps_per_epoch=4, warmup_epochs=0.5))
    for step in range(8):
        batch = batches(4)[step % 4]
        optimizer.zero_grad()
        losses = cross_entropy(net(batch.images), batch.labels, label_smoothing=smoothing, reduction="none")
        (losses.sum() / 6).backward()
        optimizer.step()
        scheduler.step()
    for trained, expected in zip(module.net.parameters(), net.parameters(), strict=True):
        assert torch.equal(trained, expected)


def test_training_rows_are_means_since_the_last_one() -> None:
    train, logger = batches(4), Memory()
    train[1].valid[3:] = False
    still = partial(OPTIMIZER, lr=0.0)
    fit(network(), train, None, optimizer=still, log_every_n_steps=2, logger=logger)
    rows = [(step, row) for step, row in logger.rows if "train/loss" in row]
    assert [step for step, _ in rows] == [1, 3, 5, 7]
    for (_, row), pair in zip(rows, (train[:2], train[2:]), strict=False):
        logits = torch.cat([network()(batch.images)[batch.valid] for batch in pair])
        labels = torch.cat([batch.labels[batch.valid] for batch in pair])
        assert row["train/loss"] == pytest.approx(cross_entropy(logits, labels).item(), rel=1e-5)
        assert row["train/acc1"] == pytest.approx((logits.argmax(1) == labels).double().mean().item())


class Norm(Callback):
    """Norms of the gradients that the optimizer used."""

    def on_train_start(self, trainer: Trainer, pl_module: nn.Module) -> None:
        self.norms: list[float] = []
        trainer.optimizers[0].register_step_post_hook(lambda *_: self.norms.append(self.norm(pl_module)))

    def norm(self, module: nn.Module) -> float:
        return nn.utils.get_total_norm([p.grad for p in module.parameters()]).item()


@pytest.mark.parametrize(("fused", "scaled"), [(False, False), (False, True), (True, True)])
def test_unscaled_gradients_are_clipped_to_the_norm(fused: bool, scaled: bool) -> None:
    watch = Norm()
    plugins = [MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))] if scaled else []
    optimizer = partial(OPTIMIZER, fused=fused)
    fit(network(), batches(4), None, watch, max_grad_norm=0.05, optimizer=optimizer, plugins=plugins)
    assert watch.norms == pytest.approx([0.05] * 8, rel=1e-3)


@pytest.mark.parametrize("num_classes", [3, 9])
def test_validation_leaves_padding_out(num_classes: int) -> None:
    torch.manual_seed(27)  # with 9 classes the share of hits differs for the best 1, 2, 4, 5 and 6
    val, net = batches(2, seed=5), nn.Sequential(nn.Flatten(), nn.Linear(48, num_classes))
    val[1].valid[4:] = False
    val[1].images[4:] = 1e6  # would ruin the loss if it counted
    trainer, module = fit(net, batches(4), val, optimizer=partial(OPTIMIZER, lr=1e-3))
    images = torch.cat([val[0].images, val[1].images[:4]])
    labels = torch.cat([val[0].labels, val[1].labels[:4]])
    logits, fitted = net(images), dict(trainer.callback_metrics)
    assert fitted["val/loss"].item() == pytest.approx(cross_entropy(logits, labels).item(), rel=1e-5)
    for key, num in (("val/acc1", 1), ("val/acc5", 5)):
        hits = (logits.topk(min(num, num_classes)).indices == labels[:, None]).any(1)
        assert fitted.get(key, 1.0) == pytest.approx(hits.double().mean().item())
    assert ("val/acc5" in fitted) == (num_classes > 5)
    assert trainer.validate(module, Loader(val), verbose=False)[0]["val/loss"] == fitted["val/loss"]


FC = {"fc.weight", "fc.bias"}
DISTILLED = {"head_dist.weight", "head_dist.bias"}


LAST_NORM = {
    f"layer4.0.bn2.{part}" for part in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
}


@pytest.mark.parametrize("callbacks", [(), (Synced(),)])
@pytest.mark.parametrize(("freeze", "norm"), [("all_but_head", set[str]()), ("all_but_head_and_last_norm", LAST_NORM)])
def test_frozen_parts_keep_weights_and_statistics(freeze: str, norm: set[str], callbacks: tuple[Callback, ...]) -> None:
    """In training too, a frozen batch norm uses the statistics of before."""
    net = timm.create_model("test_resnet", num_classes=3)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    _, module = fit(net, batches(4), batches(2), *callbacks, freeze=freeze)
    changed = {name for name, tensor in module.net.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == FC | norm


def test_validations_further_apart_than_an_epoch_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"trainer\.val_check_interval"):
        fit(network(), batches(4), val_check_interval=5)


@pytest.mark.parametrize(
    ("model", "freeze", "trained"),
    [
        ("test_convnext", "all_but_head", {"head.fc.weight", "head.fc.bias"}),
        ("test_vit", "all_but_head", {"head.weight", "head.bias"}),
        ("test_vit", "blocks", {"norm.weight", "norm.bias", "head.weight", "head.bias"}),
        ("deit_tiny_distilled_patch16_224", "all_but_head", {"head.weight", "head.bias", *DISTILLED}),
    ],
)
def test_the_trained_parameters_with_frozen_parts(model: str, freeze: str, trained: set[str]) -> None:
    """The head may be within a part, or be two; class tokens and position embeddings belong to no part."""
    net = timm.create_model(model, num_classes=3)
    Classifier(net, optimizer=OPTIMIZER, schedule=cosine, freeze=freeze)
    assert {name for name, weight in net.named_parameters() if weight.requires_grad} == trained
