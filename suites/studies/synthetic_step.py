"""A training step on random images, for studies of computation that open no data set."""

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from imagenet_opt.config.build import device_of, plain, precision_of
from imagenet_opt.config.compose import composed
from imagenet_opt.config.overrides import key_of
from imagenet_opt.model.network import RECIPE, build_network
from imagenet_opt.model.optimizer import build_optimizer

_CLASSES = 1000
"""Used if model.num_classes follows the data."""
_TYPES = {"64": torch.float64, "32": torch.float32, "bf16": torch.bfloat16, "16": torch.float16}
_LEAST_CALLS = 3


class SyntheticStep:
    """The step of train.py with these overrides, in one process; without data= or experiment= with the settings of
    data=folder, not of the demo.

    num_images, image_size: of a batch. weights: dtype of the parameters. products: dtype of the inputs of convolutions
    and matrix products; differs in mixed precision.
    """

    def __init__(self, overrides: list[str]) -> None:
        chosen = not {"data", "experiment"}.isdisjoint(map(key_of, overrides))
        config = composed(tuple(overrides) if chosen else ("data=folder", *overrides))
        self.device = device_of(config)
        self.network = {name: plain(config.model)[name] for name in RECIPE}
        self.network["num_classes"] = self.network["num_classes"] or _CLASSES
        self.num_images, self.image_size = int(config.data.batch_size), int(config.data.image_size)
        self.precision = str(precision_of(config.trainer.precision, self.device, self.image_size))
        self.products = _TYPES[self.precision.partition("-")[0]]
        self.weights = torch.float32 if self.precision.endswith("mixed") else self.products
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
        noise = torch.randn(shape, device=self.device, dtype=self.weights)
        return noise.to(memory_format=torch.channels_last if is_last else torch.contiguous_format)

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
        """Mean seconds of a call on the device, over about `seconds` and at least three calls.

        The first call chooses algorithms and allocates memory, so it does not count. The time of the second call
        determines how many calls fit. A GPU gets all calls before the host waits once.
        """

        def timed(num_calls: int) -> float:
            self.settle()
            began = time.perf_counter()
            for _ in range(num_calls):
                call()
            self.settle()
            return (time.perf_counter() - began) / num_calls

        call()
        return timed(max(_LEAST_CALLS, round(seconds / max(timed(1), 1e-9))))
