"""A training step on random images, for studies of computation that open no data set."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from imagenet_opt.config.build import device_of, num_processes, plain, precision_of, share_batch
from imagenet_opt.config.compose import composed
from imagenet_opt.config.overrides import key_of
from imagenet_opt.errors import ConfigError
from imagenet_opt.model.network import RECIPE, build_network
from imagenet_opt.model.optimizer import build_optimizer
from imagenet_opt.probe.device_peak import seconds_per_call

_CLASSES = 1000
"""Used if model.num_classes follows the data."""
_TYPES = {"64": torch.float64, "32": torch.float32, "bf16": torch.bfloat16, "16": torch.float16}


class SyntheticStep:
    """The step of train.py with these overrides; without data= or experiment= with the settings of data=folder, not of
    the demo.

    num_images, image_size: of a batch. weights: dtype of the parameters. products: dtype of the inputs of convolutions
    and matrix products; differs in mixed precision. Raises ImagenetOptError.
    """

    def __init__(self, overrides: tuple[str, ...]) -> None:
        chosen = not {"data", "experiment"}.isdisjoint(map(key_of, overrides))
        config = composed(overrides if chosen else ("data=folder", *overrides))
        self.device = device_of(config)
        share_batch(config, num_processes(config, self.device)[1])
        self.network = {name: plain(config.model)[name] for name in RECIPE}
        self.network["num_classes"] = self.network["num_classes"] or _CLASSES
        self.num_images, self.image_size = config.data.batch_size, config.data.image_size
        for key, value in {"batch_size": self.num_images, "image_size": self.image_size}.items():
            if type(value) is not int or value < 1:
                raise ConfigError(f"data.{key}={value} must be a whole number, 1 or more, in these studies")
        self.precision = str(precision_of(config.trainer.precision, self.device, self.image_size))
        self.weights, self.products = types_of(self.precision)
        self._optimizer, self._acceleration = plain(config.optimizer), config.callbacks.get("acceleration", {})
        torch.manual_seed(0)
        if self.on_gpu:  # switches of the whole process
            tf32 = self._acceleration.get("tf32", False)
            torch.set_float32_matmul_precision("high" if tf32 else "highest")
            torch.backends.cudnn.allow_tf32 = tf32
            torch.backends.cudnn.benchmark = self._acceleration.get("cudnn_benchmark", False)

    def __str__(self) -> str:
        return f"{self.network['name']}, {self.num_images} images of {self.image_size} pixels, {self.where}"

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def where(self) -> str:
        return f"{self.precision}, on {torch.cuda.get_device_name(self.device) if self.on_gpu else 'the CPU'}"

    def placed(self, module: nn.Module) -> nn.Module:
        order = torch.channels_last if self._acceleration.get("channels_last") else torch.preserve_format
        return module.to(self.device, self.weights).to(memory_format=order)

    def net(self) -> nn.Module:
        return self.placed(build_network(**self.network)).train()

    def random(self, *shape: int) -> Tensor:
        is_last = len(shape) == 4 and self._acceleration.get("channels_last")
        numbers = torch.randn(shape, device=self.device, dtype=self.weights)
        return numbers.to(memory_format=torch.channels_last if is_last else torch.contiguous_format)

    def batch(self) -> tuple[Tensor, Tensor]:
        """Random images N x 3 x S x S and labels (N,)."""
        labels = torch.randint(self.network["num_classes"], (self.num_images,), device=self.device)
        return self.random(self.num_images, 3, self.image_size, self.image_size), labels

    def autocast(self) -> torch.autocast:
        """Autocast without a cache of cast weights: a network uses each weight once per pass, and neither traces nor
        CUDA graphs allow the cache."""
        dtype = None if self.weights == self.products else self.products
        return torch.autocast(self.device.type, dtype=dtype, enabled=dtype is not None, cache_enabled=False)

    def loss(self, net: Callable[[Tensor], Tensor], images: Tensor, labels: Tensor) -> Tensor:
        with self.autocast():
            return cross_entropy(net(images).float(), labels)

    def optimizer(self, net: nn.Module) -> Optimizer:
        """The configured optimizer with a learning rate of 0, so that all steps use the same weights."""
        options = self._optimizer | {"lr": 0.0}
        return build_optimizer(net, global_batch=self.num_images, device=self.device, **options)

    def settle(self) -> None:
        """Wait until the device has finished all work."""
        if self.on_gpu:
            torch.cuda.synchronize(self.device)

    def seconds(self, call: Callable[[], object], seconds: float) -> float:
        """Mean seconds of a call on the device, over about `seconds`."""
        return seconds_per_call(call, seconds=seconds, settle=self.settle)


def types_of(precision: str) -> tuple[torch.dtype, torch.dtype]:
    """Dtypes of the weights and of the products for Lightning's name of a precision. Raises ConfigError."""
    name, _, how = precision.partition("-")
    if name not in _TYPES or how not in ("", "true", "mixed"):
        raise ConfigError(f"trainer.precision={precision} cannot be studied; use mixed, bf16-mixed or 32-true")
    mixed = how == "mixed" or (not how and name in ("bf16", "16"))
    return torch.float32 if mixed else _TYPES[name], _TYPES[name]
