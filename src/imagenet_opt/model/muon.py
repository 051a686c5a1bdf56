"""timm's Muon with one batched product for all weights of one shape, up to transposition."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from timm.optim import muon as timm_muon
from torch import Tensor

from imagenet_opt import private_api


class BatchedMuon(timm_muon.Muon):
    """timm's Muon, with its states and checkpoints. A step of resnet50d calls torch 593 instead of 3,170 times; on a
    GPU such calls take longer than the products."""

    def step(self, closure: Any = None) -> Any:
        with _timms_functions_replaced():
            return super().step(closure)


@contextmanager
def _timms_functions_replaced() -> Iterator[None]:
    before = {name: getattr(timm_muon, name) for name in ("muon", "nadamw", "adamw")}
    own = {"muon": _muon, "nadamw": partial(_in_one, before["nadamw"]), "adamw": partial(_in_one, before["adamw"])}
    try:
        for name, function in own.items():
            setattr(timm_muon, name, function)
        yield
    finally:
        for name, function in before.items():
            setattr(timm_muon, name, function)


def _in_one(
    update: Callable[..., None],
    params: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    *others: list[Tensor],
    capturable: bool,
    **options: Any,
) -> None:
    """`update` as if all vectors were one, which changes no number, if all have made as many steps."""
    *unused, steps = others
    if capturable or any(param.ndim != 1 for param in params) or len(set(torch.stack(steps).tolist())) > 1:
        return update(params, grads, exp_avgs, exp_avg_sqs, *others, capturable=capturable, **options)
    parts = (params, exp_avgs, exp_avg_sqs)
    whole = [torch.cat(tensors) for tensors in parts]
    long = [[tensor] for tensor in (whole[0], torch.cat(grads), *whole[1:])]
    update(*long, *unused, steps[:1], capturable=capturable, **options)
    private_api.add_to_all(steps[1:], 1)
    sizes = [len(param) for param in params]
    for tensors, tensor in zip(parts, whole, strict=True):
        private_api.copy_all(tensors, tensor.split(sizes))


def _muon(
    params: list[Tensor],
    grads: list[Tensor],
    momentum_bufs: list[Tensor],
    *,
    lr: float,
    weight_decay: float,
    momentum: float,
    nesterov: bool,
    ns_steps: int,
    ns_coefficients: Any,
    adjust_lr_fn: str | None,
    eps: float,
    safety_factor: float,
    scale_eps: bool,
    **unused: Any,
) -> None:
    """timm.optim.muon.muon for weights as matrices (out, in x height x width), conv_mode=flatten."""
    known = timm_muon.resolve_ns_coefficients(ns_coefficients, private_api.muon_coefficients())
    coefficients = [known[min(i, len(known) - 1)] for i in range(ns_steps)]
    private_api.scale_all(params, 1 - lr * weight_decay)
    private_api.blend_all(momentum_bufs, grads, 1.0 - momentum)
    updates = private_api.blended(grads, momentum_bufs, momentum) if nesterov else momentum_bufs
    for same in _places(params).values():
        matrices = [torch.stack([updates[i] for i in places]).flatten(2) for places in same.values()]
        wide = [each if each.shape[1] <= each.shape[2] else each.mT for each in matrices]
        one = torch.cat(wide) if len(wide) > 1 else wide[0]
        floor = timm_muon.scale_eps_for_ns(eps, one.shape) if scale_eps else eps
        orthogonal = _orthogonal(one, coefficients, floor, safety_factor, adds=scale_eps).float()
        parts = orthogonal.split([len(each) for each in wide]) if len(wide) > 1 else [orthogonal]
        for (shape, places), before, part in zip(same.items(), matrices, parts, strict=True):
            scale = timm_muon.get_lr_scale(before.shape[1:], adjust_lr_fn) if adjust_lr_fn else 1.0
            changes = (part if part.shape == before.shape else part.mT).reshape(-1, *shape).unbind()
            private_api.add_to_all([params[i] for i in places], list(changes), alpha=-lr * scale)


def _orthogonal(
    matrices: Tensor,
    coefficients: list[tuple[float, float, float]],
    eps: float,
    safety_factor: float,
    *,
    adds: bool,
) -> Tensor:
    """timm's zeropower_via_newtonschulz of wide matrices (num, rows, columns), which calls torch a fifth more often.
    adds: whether eps is added to the norms, of which it is the least otherwise."""
    x = matrices.bfloat16()
    norms = x.norm(2, dim=(-2, -1), keepdim=True)
    norms = norms if safety_factor == 1 else norms * safety_factor
    x = x / (norms + eps if adds else norms.clamp(min=eps))
    for a, b, c in coefficients:
        square = torch.bmm(x, x.mT)
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x


def _places(params: list[Tensor]) -> dict[Any, dict[torch.Size, list[int]]]:
    """Shape as a wide matrix -> shape of the weights -> their places."""
    found: dict[Any, dict[torch.Size, list[int]]] = defaultdict(lambda: defaultdict(list))
    for place, param in enumerate(params):
        num_out = len(param)
        found[tuple(sorted((num_out, param.numel() // num_out)))][param.shape].append(place)
    return found
