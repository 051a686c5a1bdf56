"""Values of the configuration that follow timm's weights: `${of_weights:KEY,DEFAULT}`."""

from typing import Any

from omegaconf import DictConfig, OmegaConf


def register() -> None:
    """Let OmegaConf know `of_weights`."""
    OmegaConf.register_new_resolver("of_weights", _of_weights, replace=True)


def _of_weights(key: str, default: Any, *, _root_: DictConfig) -> Any:
    """`key` of timm's weights, by timm's name for it, such as mean or crop_pct; `default` without
    model.pretrained=true, and where timm does not say it."""
    if OmegaConf.select(_root_, "model.pretrained") is not True:
        return default
    from timm.models import get_pretrained_cfg_value

    try:
        value = get_pretrained_cfg_value(str(_root_.model.name), key)
    except RuntimeError:  # an unknown name or tag, which build_network refuses
        return default
    return default if value is None else list(value) if isinstance(value, tuple) else value
