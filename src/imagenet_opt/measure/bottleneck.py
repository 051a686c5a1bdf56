"""What to say of an attribution of time, and what to do next."""

from collections.abc import Mapping

from imagenet_opt.measure.attribution import HEALTHY_BUSY

CAUSES = {
    "read": ("waiting for storage", "more requests in flight, or files packed onto a local disk (imagenet-opt pack)"),
    "decode": ("decoding images", "more CPUs, or smaller images (imagenet-opt pack max_side=...)"),
    "main_process": ("the main process", "look at its callbacks and at what waits for the device in the step"),
    "logging": ("logging", "log less often (trainer.log_every_n_steps)"),
    "checkpoint": ("saving checkpoints", "save less often (checkpoint.every_minutes)"),
    "validation": ("validation", "validate less often (trainer.check_val_every_n_epoch)"),
    "copy": ("copying to the device", "send smaller batches, or pin their memory"),
    "unexplained": ("no cause that is measured while training", "find it by experiment"),
}
"""Cause of attribution.py -> what it is called, and what helps."""
PROOF = "`imagenet-opt doctor` proves it"


def sentence(shares: Mapping[str, float]) -> str:
    """Where the time of a window went that was long enough to tell. shares: of Attribution."""
    busy = shares["busy"]
    if busy >= HEALTHY_BUSY:
        return f"none, the device is busy {_percent(busy)} of the time"
    cause = max(CAUSES, key=lambda name: shares[name])
    name, remedy = CAUSES[cause]
    proof = "" if cause == "validation" else f"; {PROOF}"  # which the doctor leaves out
    return f"{name}, {_percent(shares[cause])} of the time; the device is busy {_percent(busy)}. Next: {remedy}{proof}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
