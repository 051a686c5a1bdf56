"""NVIDIA DALI on the CPU: decodes only the crop's region."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from imagenet_opt.bench.turn import BenchJob


def loader(job: BenchJob) -> Iterable[Tensor]:
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.plugin.base_iterator import LastBatchPolicy
    from nvidia.dali.plugin.pytorch import DALIClassificationIterator

    size, scale = job.loading.image_size, list(job.loading.crop_scale)
    paths, labels = map(list, zip(*job.samples(), strict=True))
    threads, seed = max(1, job.num_workers), job.loading.seed

    @pipeline_def(
        batch_size=job.loading.batch_size,
        num_threads=threads,
        device_id=None,
        seed=seed,
        prefetch_queue_depth=job.prefetch_factor,
    )
    def crops() -> Any:
        files, file_labels = fn.readers.file(files=paths, labels=labels, random_shuffle=True, name="files")
        pixels = fn.decoders.image_random_crop(
            files, device="cpu", output_type=types.RGB, random_area=scale, random_aspect_ratio=[3 / 4, 4 / 3]
        )
        images = fn.resize(pixels, resize_x=size, resize_y=size, interp_type=types.INTERP_LINEAR, antialias=True)
        return fn.flip(images, horizontal=fn.random.coin_flip()), file_labels

    pipeline = crops()
    pipeline.build()
    batches = DALIClassificationIterator(pipeline, reader_name="files", last_batch_policy=LastBatchPolicy.DROP)
    return (batch[0]["data"] for batch in batches)
