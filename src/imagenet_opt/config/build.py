"""Builds trainer, model and data from a configuration."""

from dataclasses import fields
from functools import partial
from typing import Any

import torch
from hydra.errors import HydraException
from hydra.utils import instantiate
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import Checkpoint, ProgressBar, Timer
from lightning.pytorch.plugins import TorchSyncBatchNorm
from lightning.pytorch.utilities import rank_zero_info
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict
from timm import optim
from timm.layers import convert_sync_batchnorm
from torch import nn

from imagenet_opt.config.targets import check_node, check_types
from imagenet_opt.config.trust import find
from imagenet_opt.data.options import LoaderOptions
from imagenet_opt.display.progress import print_once
from imagenet_opt.errors import ConfigError, ImagenetOptError, did_you_mean, one_line
from imagenet_opt.model.classifier import Classifier
from imagenet_opt.model.initial_weights import load_initial_weights
from imagenet_opt.model.loss import start_bias
from imagenet_opt.model.network import RECIPE, STARTING, build_network, check_image_size, check_options
from imagenet_opt.model.optimizer import REFERENCE_BATCH, build_optimizer, options_of
from imagenet_opt.model.saved_network import VALIDATED_WITH
from imagenet_opt.private_api import has_fast_bfloat16
from imagenet_opt.run.checkpoint.position import validate_last_weights
from imagenet_opt.run.rows import TruncateLogs

_LEAST_BFLOAT16_SIZE = 32
"""Pixels of a side. oneDNN of torch 2.14 computes wrong bfloat16 gradients of a convolution with stride 2 on a map of
1 x 1, which ResNets have below this size."""


def build_model(config: DictConfig, *, global_batch: int) -> Classifier:
    """Network, optimizer and schedule as one LightningModule. global_batch: images per step, of all processes."""
    network, options, optimizer = _checked_model(config)
    net = build_network(**network)
    for size in {*image_sizes(config), config.data.val_image_size or config.data.image_size}:
        check_image_size(net, size)
    if options.get("loss") == "bce_sum":
        start_bias(net.get_classifier(), network["num_classes"])  # type: ignore[operator]
    model = Classifier(
        net,
        optimizer=partial(build_optimizer, global_batch=global_batch, **optimizer),
        schedule=make(config.schedule, "schedule"),
        batch_size=config.data.batch_size,
        network_config={name: network[name] for name in RECIPE} | _validated_with(config),
        **options,
    )
    lr = optimizer["lr"] * global_batch / REFERENCE_BATCH
    rank_zero_info(f"{network['name']}: {network['num_classes']} classes, batch {global_batch}, lr {lr:.3g}")
    return model


def trained_network(config: DictConfig, num_classes: int | None = None) -> nn.Module:
    """The network of the configuration without what only training needs, on the device `meta`. num_classes: instead of
    model.num_classes."""
    options = {name: plain(config.model)[name] for name in RECIPE}
    with torch.device("meta"):
        return build_network(**options | ({} if num_classes is None else {"num_classes": num_classes}))


def _checked_model(config: DictConfig) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Options of build_network, of Classifier and of build_optimizer. Raises ConfigError for a value of another type.

    model.pretrained and model.init_from are checked and left out: training/build_run.py loads the first weights.
    """
    model, optimizer = plain(config.model), plain(config.optimizer)
    network = {"options": {}} | {name: model.pop(name) for name in (*RECIPE, *STARTING) if name in model}
    network["num_classes"] = network["num_classes"] or 1  # null: the data set is not known yet
    check_types(load_initial_weights, {name: model.pop(name) for name in ("pretrained", "init_from")}, "model.")
    check_types(build_network, network, "model.")
    check_options(network["name"], network["options"])
    check_types(Classifier, model, "model.")
    check_types(build_optimizer, optimizer, "optimizer.")
    options_of(optimizer["name"], optimizer)
    check_types(optim.get_optimizer_class(optimizer["name"], bind_defaults=False), optimizer, "optimizer.")
    return network, model, optimizer


def _validated_with(config: DictConfig) -> dict[str, Any]:
    """The keys of network_config that tell how the run validates."""
    data = config.data
    values = {key: data.get(key) for key in VALIDATED_WITH}
    values |= {"image_size": data.val_image_size or data.image_size, "val_flip": config.model.val_flip}
    values["precision"] = str(config.trainer.precision)
    values["val_interpolation"] = values["val_interpolation"] or data.get("interpolation")
    return {key: list(value) if isinstance(value, ListConfig) else value for key, value in values.items()}


def precision_of(precision: Any, device: torch.device, image_size: int = _LEAST_BFLOAT16_SIZE) -> Any:
    """Lightning's name for `mixed` on this device; other values stay unchanged. image_size: pixels of a side of the
    smallest images."""
    if precision != "mixed":
        return precision
    if device.type == "cuda":
        return "bf16-mixed" if torch.cuda.is_bf16_supported(including_emulation=False) else "16-mixed"
    fast_on_cpu = device.type == "cpu" and has_fast_bfloat16()
    return "bf16-mixed" if fast_on_cpu and image_size >= _LEAST_BFLOAT16_SIZE else "32-true"


def build_trainer(config: DictConfig, *first: Callback) -> Trainer:
    """Build the Trainer. first: callbacks whose hooks run before the hooks of the configured callbacks."""
    device = device_of(config)
    if device.type == "cpu" and config.trainer.accelerator in ("gpu", "cuda"):
        raise ConfigError(
            f"trainer.accelerator={config.trainer.accelerator}: torch finds no GPU; leave this key out to train on "
            "the CPU, or check the GPU with nvidia-smi"
        )
    with open_dict(config):
        precision, size = config.trainer.precision, smallest_size(config)
        config.trainer.precision = precision_of(precision, device, size)
        counts = {key: config.trainer.get(key) for key in ("devices", "num_nodes")}  # texts under torchrun and SLURM
        config.trainer.update({key: int(num) for key, num in counts.items() if str(num).isdecimal()})
    if config.trainer.precision != precision_of(precision, device):
        print_once(f"trainer.precision=mixed is 32-true: gradients in bfloat16 are wrong on CPUs at {size} pixels")
    make_trainer = make(config.trainer, "trainer")
    try:
        every = config.trainer.log_every_n_steps
        if config.trainer.max_steps > 0:
            every = max(1, min(every, config.trainer.max_steps))
        plugins = make_trainer.keywords.get("plugins") or []
        max_time = make_trainer.keywords.pop("max_time", None)
        timers = [] if max_time is None else [_Timer(max_time)]
        callbacks = [*first, TruncateLogs(), *make(config.callbacks, "callbacks").values(), *timers]
        trainer: Trainer = make_trainer(
            log_every_n_steps=every,
            callbacks=callbacks,
            logger=list(make(config.logger, "logger").values()),
            **{"plugins": [*plugins, _SyncBatchNorm()]} if config.trainer.get("sync_batchnorm") else {},
            enable_checkpointing=any(isinstance(callback, Checkpoint) for callback in callbacks),
            enable_progress_bar=any(isinstance(callback, ProgressBar) for callback in callbacks),
        )
    except (TypeError, ValueError, RuntimeError, MisconfigurationException) as error:
        raise ConfigError(f"trainer: {one_line(str(error))}") from error
    validate_last_weights(trainer)
    return trainer


class _Timer(Timer):
    """trainer.max_time. Looks at the time before a step, not after it, so that the last step knows that it is the last,
    and its row of metrics has all numbers."""

    state_key = "Timer"  # Lightning's, as in checkpoints

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        super().on_train_batch_end(trainer)

    def on_train_batch_end(self, *_: Any) -> None:
        pass


class _SyncBatchNorm(TorchSyncBatchNorm):
    """trainer.sync_batchnorm for timm's networks. torch's conversion drops the activation inside timm's batch norms
    (EfficientNet, RegNet, DenseNet and others)."""

    def apply(self, model: nn.Module) -> nn.Module:
        return convert_sync_batchnorm(model)  # type: ignore[no-any-return]


def make(node: DictConfig, name: str) -> Any:
    """Instantiate `node`. A wrong or unknown key becomes a ConfigError that names the group."""
    options = plain(node)
    if "_target_" not in options:
        return {str(key): make(child, f"{name}.{key!s}") for key, child in node.items()}
    check_node(options, name)
    target = find(options["_target_"], f"{name}._target_")
    try:
        if not options.get("_partial_"):
            return instantiate(node, _convert_="all")
        arguments = {key: value for key, value in options.items() if key not in ("_target_", "_partial_")}
        # Hydra's own partial checks its target in each call, which costs a hundred times a schedule.
        return partial(target, **instantiate(arguments, _convert_="all"))
    except HydraException as error:
        cause = error.__cause__
        if cause is None:
            raise
        if isinstance(cause, ImagenetOptError):
            raise cause from None
        kind = "" if isinstance(cause, TypeError | ValueError) else f"{type(cause).__name__}: "
        raise ConfigError(f"{name}: {kind}{one_line(str(cause))}") from error


def num_classes_of(configured: int | None, num_in_data: int) -> int:
    """`configured` (model.num_classes), or the classes of the data. Raises ConfigError if the network has too few."""
    if configured is None or configured == num_in_data:
        return num_in_data
    differ = f"the network has {configured} classes (model.num_classes), the data {num_in_data} classes"
    if configured < num_in_data:
        raise ConfigError(f"{differ}; set model.num_classes=null to follow the data")
    rank_zero_info(f"{differ}; model.num_classes=null follows the data")
    return configured


def wants_gpu(config: DictConfig) -> bool:
    """Whether the run uses a GPU if there is one."""
    return config.trainer.accelerator in ("auto", "gpu", "cuda")


def device_of(config: DictConfig) -> torch.device:
    """The device on which this process trains; of several GPUs the current one."""
    on_gpu = torch.cuda.is_available() and wants_gpu(config)
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")


def num_processes(config: DictConfig, device: torch.device) -> tuple[int, int]:
    """Number of processes of the configured run: on one node, and in all. Raises ConfigError."""
    devices, num_nodes = config.trainer.devices, str(config.trainer.get("num_nodes", 1))
    if not num_nodes.isdecimal() or int(num_nodes) < 1:
        raise ConfigError(f"trainer.num_nodes={num_nodes} must be a number of machines, at least 1")
    if OmegaConf.is_list(devices):
        local = len(devices)
    elif "," in str(devices):  # Lightning's text for a list
        local = len(list(filter(str.strip, str(devices).split(","))))
    elif str(devices).isdecimal() and int(devices) > 0:
        local = int(devices)
    else:
        local = torch.cuda.device_count() if device.type == "cuda" else 1
    return local, local * int(num_nodes)


def share_batch(config: DictConfig, num_processes: int) -> None:
    """Replace data.global_batch_size, if it is set, by data.batch_size of each process. Raises ConfigError."""
    if (size := config.data.get("global_batch_size")) is None:
        return
    shared = LoaderOptions(global_batch_size=size).for_processes(num_processes)
    with open_dict(config):
        config.data.batch_size, config.data.global_batch_size = shared.batch_size, None


def largest_size(config: DictConfig) -> int:
    """Width in pixels of the largest training images of the run."""
    growing = config.callbacks.get("resolution_schedule")
    return int(config.data.image_size if growing is None else max(growing.start, growing.end))


def smallest_size(config: DictConfig) -> int:
    """Width in pixels of the smallest images of the run."""
    data = config.data
    return int(min(*image_sizes(config), data.val_image_size or data.image_size))


def image_sizes(config: DictConfig) -> list[int]:
    """Width in pixels of the training images in each epoch; of one epoch if trainer.max_epochs sets no number. Raises
    ConfigError for an invalid schedule."""
    num_epochs = max(1, int(config.trainer.max_epochs or 1))
    if config.callbacks.get("resolution_schedule") is None:
        return [largest_size(config)] * num_epochs
    schedule = make(config.callbacks.resolution_schedule, "callbacks.resolution_schedule")
    return [schedule.size_of(epoch, num_epochs) for epoch in range(num_epochs)]


def at_one_size(config: DictConfig) -> None:
    """Replace a schedule of growing images by its largest, slowest size, and print a message. Raises ConfigError for an
    invalid schedule."""
    if "resolution_schedule" in config.callbacks:
        make(config.callbacks.resolution_schedule, "callbacks.resolution_schedule")
        size = largest_size(config)
        set_size(config, size)
        print_once(f"images grow to {size} pixels (callbacks.resolution_schedule): measured at that size")


def set_size(config: DictConfig, size: int) -> None:
    """Replace a schedule of growing images by one size, in pixels."""
    with open_dict(config):
        config.data.image_size = size
        config.callbacks.pop("resolution_schedule", None)


def check_config(config: DictConfig) -> None:
    """Check keys and values of a whole configuration, without building it. Raises ConfigError."""
    _, options, _ = _checked_model(config)
    made = {"optimizer": build_optimizer, "schedule": make(config.schedule, "schedule"), "freeze": None}
    Classifier(nn.Identity(), **options | made)  # which checks its values
    config = config.copy()
    with open_dict(config):
        config.model.num_classes = config.model.num_classes or 1  # null: the data set is not known yet
    groups = {name: plain(config[name]) for name in ("data", "schedule", "trainer", "logger", "callbacks")}
    data, trainer = groups["data"], groups["trainer"]
    trainer["precision"] = precision_of(trainer["precision"], torch.device("cpu"))
    for key in ("devices", "num_nodes"):  # texts under torchrun and SLURM
        trainer.pop(key, None)
    for name, node in groups.items():
        if name in ("logger", "callbacks") and (idle := [key for key in node if "_target_" not in str(node[key])]):
            hint = f"add {idle[0]} to {name}=[...], set {name}.{idle[0]}._target_=CLASS, or add ~{name}.{idle[0]}"
            hint = did_you_mean(idle[0], node.keys() - idle, hint)
            raise ConfigError(f"{name}.{idle[0]} has no _target_, so nobody reads it; {hint}")
        check_node(node, name)
    if "acceleration" in config.callbacks:
        make(config.callbacks.acceleration, "callbacks.acceleration")
    LoaderOptions(**{field.name: data[field.name] for field in fields(LoaderOptions) if field.name in data})


def plain(node: DictConfig) -> dict[str, Any]:
    return OmegaConf.to_container(node, resolve=True)  # type: ignore[return-value]
