"""Network, batch and number types for studies of computation, on random images."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from imagenet_opt.config.build import check_types, device_of, num_processes, precision_of, share_batch
from imagenet_opt.config.compose import composed
from imagenet_opt.config.overrides import key_of
from imagenet_opt.errors import ConfigError
from imagenet_opt.model.compiled_forward import AUTO
from imagenet_opt.model.network import RECIPE, build_network
from imagenet_opt.model.optimizer import build_optimizer

_CLASSES = 1000
"""Used if model.num_classes follows the data, because these studies do not open a data set."""
_TYPES = {"64": torch.float64, "32": torch.float32, "bf16": torch.bfloat16, "16": torch.float16}


@dataclass(frozen=True)
class SyntheticStep:
    """Settings of a training step on random images, in plain values that other processes can receive.

    network: arguments of `build_network`; optimizer: arguments of `build_optimizer`. weights: dtype of the parameters.
    products: dtype of the inputs of convolutions and matrix products; differs in mixed precision. channels_last, tf32,
    cudnn_benchmark: as in the callback `acceleration`; the last two on a GPU only. compile: arguments of torch.compile;
    None if training does not compile.
    """

    network: dict[str, Any]
    optimizer: dict[str, Any]
    num_images: int
    image_size: int
    precision: str
    weights: torch.dtype
    products: torch.dtype
    device: torch.device
    channels_last: bool
    tf32: bool
    cudnn_benchmark: bool
    compile: dict[str, Any] | None

    def __str__(self) -> str:
        return f"{self.network['name']}, {self.num_images} images of {self.image_size} pixels, {self.where}"

    @property
    def where(self) -> str:
        kind = "the CPU" if self.device.type == "cpu" else torch.cuda.get_device_name(self.device)
        return f"{self.precision}, on {kind}"

    def prepare(self) -> None:
        """Set switches that hold for the whole process; there are none on CPUs."""
        torch.manual_seed(0)
        if self.device.type == "cuda":
            torch.set_float32_matmul_precision("high" if self.tf32 else "highest")
            torch.backends.cudnn.allow_tf32 = self.tf32
            torch.backends.cudnn.benchmark = self.cudnn_benchmark

    def placed(self, module: nn.Module) -> nn.Module:
        order = torch.channels_last if self.channels_last else torch.preserve_format
        return module.to(self.device, self.weights).to(memory_format=order)

    def net(self) -> nn.Module:
        return self.placed(build_network(**self.network)).train()

    def random(self, *shape: int) -> Tensor:
        order = torch.channels_last if self.channels_last and len(shape) == 4 else torch.contiguous_format
        return torch.randn(shape, device=self.device, dtype=self.weights).to(memory_format=order)

    def batch(self) -> tuple[Tensor, Tensor]:
        """Random images N x 3 x S x S and labels (N,)."""
        labels = torch.randint(self.network["num_classes"], (self.num_images,), device=self.device)
        return self.random(self.num_images, 3, self.image_size, self.image_size), labels

    def autocast(self) -> torch.autocast:
        """Autocast without a cache of cast weights: a network uses each weight once per pass, and neither traces nor
        CUDA graphs allow the cache."""
        mixed = self.weights != self.products
        return torch.autocast(
            self.device.type, dtype=self.products if mixed else None, enabled=mixed, cache_enabled=False
        )

    def loss(self, net: Callable[[Tensor], Tensor], images: Tensor, labels: Tensor) -> Tensor:
        with self.autocast():
            return cross_entropy(net(images).float(), labels)

    def build_optimizer(self, net: nn.Module) -> Optimizer:
        """The configured optimizer with a learning rate of 0, so that all steps use the same weights."""
        options = self.optimizer | {"lr": 0.0}
        return build_optimizer(net, global_batch=self.num_images, device=self.device, **options)

    def settle(self) -> None:
        """Wait until the device has finished all work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def subject_of(overrides: tuple[str, ...]) -> SyntheticStep:
    """The step of train.py with these overrides. No data set is opened; without data= the settings are those of
    data=folder, not of the demo. Raises ImagenetOptError."""
    chosen = not {"data", "experiment"}.isdisjoint(map(key_of, overrides))
    config = composed(overrides if chosen else ("data=folder", *overrides))
    device = device_of(config)
    share_batch(config, num_processes(config, device)[1])
    network = {name: config.model[name] for name in RECIPE}
    network["num_classes"] = network["num_classes"] or _CLASSES
    check_types(build_network, network, "model.")
    precision = str(precision_of(config.trainer.precision, device))
    weights, products = types_of(precision)
    acceleration = config.callbacks.get("acceleration", {})
    switches = {key: bool(acceleration.get(key, False)) for key in ("channels_last", "tf32", "cudnn_benchmark")}
    compile_options = None
    compiles = acceleration.get("compile", False)
    if compiles == AUTO:
        compiles = device.type == "cuda"
    if compiles:
        mode = "default" if device.type == "cpu" else acceleration.get("compile_mode", "default")
        compile_options = {"mode": mode, "fullgraph": bool(acceleration.get("fullgraph", False)), "dynamic": False}
    return SyntheticStep(
        network=network,
        optimizer=OmegaConf.to_container(config.optimizer, resolve=True),  # type: ignore[arg-type]
        num_images=_whole("data.batch_size", config.data.batch_size),
        image_size=_whole("data.image_size", config.data.image_size),
        precision=precision,
        weights=weights,
        products=products,
        device=device,
        **switches,
        compile=compile_options,
    )


def _whole(key: str, value: Any) -> int:
    if type(value) is not int or value < 1:
        raise ConfigError(f"{key}={value} must be a whole number, 1 or more; these studies do not choose one")
    return value


def types_of(precision: str) -> tuple[torch.dtype, torch.dtype]:
    """Dtypes of the weights and of the products for Lightning's name of a precision. Raises ConfigError."""
    name, _, how = precision.partition("-")
    if name not in _TYPES or how not in ("", "true", "mixed"):
        raise ConfigError(f"trainer.precision={precision} cannot be studied; use mixed, bf16-mixed or 32-true")
    mixed = how == "mixed" or (not how and name in ("bf16", "16"))
    return torch.float32 if mixed else _TYPES[name], _TYPES[name]
