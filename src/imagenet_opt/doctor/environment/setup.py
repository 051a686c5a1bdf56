"""The run that the checks examine, as plain values."""

from dataclasses import dataclass

from imagenet_opt.doctor.remedies import DataPlace


@dataclass(frozen=True, kw_only=True)
class Setup:
    """data: as configured. folder: real path of the training files. files: some of these. data_bytes: size of the whole
    training set. num_workers, prefetch_factor: as configured, with auto resolved. fitted_workers, fitted_prefetch:
    after the loader's memory budget. batch_bytes: mean size of a batch that a worker sends. precision:
    trainer.precision, which may be "mixed". widths: channels in and out of the network's convolutions and linear
    layers, except the image's own. cuda_index: torch's; None on a CPU.
    """

    data: DataPlace
    folder: str
    files: tuple[str, ...]
    data_bytes: int
    num_workers: int
    fitted_workers: int
    prefetch_factor: int
    fitted_prefetch: int
    batch_bytes: float
    batch_size: int
    precision: str
    widths: tuple[int, ...]
    num_classes: int
    channels_last: bool
    cuda_index: int | None = None
