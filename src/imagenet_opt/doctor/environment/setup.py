"""The run that the checks look at, as plain values: they need neither its data nor its network."""

from dataclasses import dataclass

from imagenet_opt.doctor.remedies import DataPlace


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A run on this machine.

    data: as configured. folder: where the training files really lie, without links. files: some of these, in no order
    of their folders. data_bytes: of the whole training set. num_workers, prefetch_factor: asked for (what auto comes
    to); fitted_workers, fitted_prefetch: what the loader's budget made of them. batch_bytes: of a batch as a worker
    hands it over, on the mean. precision: trainer.precision, which may be "mixed". widths: channels in and out of the
    network's convolutions and linear layers, the image's own left out. cuda_index: torch's; None on a CPU.
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
