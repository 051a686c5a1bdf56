"""Measures what only a GPU can say, the doubtful first: `python tests/gpu/first.py OUT.json`, see --help.

Each probe writes its numbers as soon as it has them; an error ends that probe alone and is written in its place.
Without a GPU the probes run on small inputs and leave out what needs one, which shows mistakes of the probes only.
"""

import argparse
import io
import json
import multiprocessing
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from callbacks.ema import Ema
from imagenet_opt.data.decode.decoder import Decoder
from imagenet_opt.data.transforms.image_format import ImageFormat
from imagenet_opt.data.transforms.resize import resize_ragged, resize_torch
from imagenet_opt.machine import versions
from imagenet_opt.measure.telemetry.gpu import device_names, find_device
from imagenet_opt.model.cuda_graph import GraphedForward, capture_on_gpu
from imagenet_opt.probe.device_peak import timed
from tests.gpu.training_steps import DEVICE, ON_GPU, Found, images_of, milliseconds, mixed, network, settle, steps


def machine(num_images: int) -> Found:
    """Versions, the card, and what NVML answers on it."""
    found: Found = {"versions": versions(), "cuda": torch.version.cuda}
    if not ON_GPU:
        return found
    import pynvml

    card = torch.cuda.get_device_properties(0)
    found |= {"name": card.name, "multiprocessors": card.multi_processor_count, "gib": card.total_memory / 2**30}
    pynvml.nvmlInit()
    handle = find_device(pynvml, *device_names(0))
    found["nvml_name"] = pynvml.nvmlDeviceGetName(handle)
    for kind in ("NVML_GPU_UTILIZATION_SAMPLES", "NVML_TOTAL_POWER_SAMPLES"):
        try:
            found[kind] = len(pynvml.nvmlDeviceGetSamples(handle, getattr(pynvml, kind), 0)[1])
        except pynvml.NVMLError as error:
            found[kind] = str(error)
    pynvml.nvmlShutdown()
    return found


def _decode_in_child(encoded: bytes, box: tuple[int, int, int, int], answer: Connection) -> None:
    decoder = Decoder(exif_rotation=False, max_crop_pixels=2**22)
    image = decoder.open(encoded, "drawn.jpg")
    decoder.crop(image, box)
    seconds = timed(lambda: decoder.crop(image, box), num_calls=50)
    answer.send({"is_region_decode": image.stream is not None, "ms": 1e3 * seconds})


def fork(num_images: int) -> Found:
    """Whether a worker that is forked after CUDA has begun decodes regions on its CPU."""
    pixels = np.random.default_rng(0).integers(0, 255, (480, 640, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(buffer := io.BytesIO(), "JPEG")
    torch.zeros(1, device=DEVICE)
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    child = context.Process(target=_decode_in_child, args=(buffer.getvalue(), (10, 10, 200, 300), there))
    child.start()
    there.close()  # so that a child that dies is the end of the pipe
    try:
        found: Found = here.recv() if here.poll(60) else {"error": "the child did not answer within 60 s"}
    except EOFError:
        found = {"error": "the child died"}
    child.join(10)
    return found


def resize(num_images: int) -> Found:
    """The resize kernel on crops with ImageNet's sizes: right, and how many milliseconds; and the copy to the device.

    Crops are those of RandomResizedCrop's defaults (scale 0.08 to 1, ratio 3/4 to 4/3) from images of 483 x 412 pixels.
    """
    draw = np.random.default_rng(0)
    area = 483 * 412 * draw.uniform(0.08, 1, num_images)
    ratio = np.exp(draw.uniform(np.log(3 / 4), np.log(4 / 3), num_images))
    heights, widths = (np.sqrt(one).astype(np.int32).clip(8) for one in (area / ratio, area * ratio))
    sizes = 3 * heights.astype(np.int64) * widths
    pixels = torch.from_numpy(draw.integers(0, 256, int(sizes.sum()), dtype=np.uint8))
    small = [torch.from_numpy(one) for one in (heights, widths, sizes.cumsum() - sizes, draw.random(num_images) < 0.5)]
    there = [one.to(DEVICE) for one in (pixels, *small)]

    def kernel() -> Tensor:
        return resize_ragged(*there, size=224, format=ImageFormat(dtype=torch.bfloat16))

    began = time.perf_counter()
    resized = kernel()
    settle()
    found: Found = {"num_crops": num_images, "mb": pixels.nbytes / 1e6, "first_seconds": time.perf_counter() - began}
    right = resize_torch(pixels, *(one[:4] for one in small), size=224, format=ImageFormat())
    found["largest_difference"] = float((resized[:4].float().cpu() - right).abs().max())
    found["ms"] = milliseconds(kernel)
    if ON_GPU:
        pinned = pixels.pin_memory()
        found["copy_gb_per_second"] = pixels.nbytes / 1e6 / milliseconds(lambda: there[0].copy_(pinned, True))
    return found


def two_sizes(num_images: int) -> Found:
    """GiB reserved after the CUDA graph of each image size: they grow no further where the graphs share memory."""
    if not ON_GPU:
        return {"left_out": "needs a GPU"}
    net = network()
    graphed = GraphedForward(net, capture_on_gpu())
    before = torch.cuda.memory_reserved()
    found: Found = {}
    for side in (192, 160, 128):
        with mixed():
            graphed.capture(images_of(64, side))
        torch.cuda.empty_cache()
        found[f"gib_after_{side}_px"] = (torch.cuda.memory_reserved() - before) / 2**30
    graphed.release()
    return found


def ema(num_images: int) -> Found:
    """Milliseconds of an update of the averaged weights, and where they are."""
    from lightning.pytorch import LightningModule, Trainer

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = network().cpu()

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            return self.net(batch[0]).mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    found: Found = {}

    class Probe(Ema):
        def on_train_end(self, *args: Any) -> None:
            found["device"] = str(next(self._average_model.parameters()).device)
            found["ms"] = milliseconds(self._update)
            super().on_train_end(*args)

    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(4, 3, 64, 64)), batch_size=2)
    Trainer(
        max_steps=2,
        accelerator="gpu" if ON_GPU else "cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Probe()],
    ).fit(Module(), data)
    return found


PROBES = {probe.__name__: probe for probe in (machine, fork, resize, two_sizes, ema, steps)}


def measure(out: Path, num_images: int, names: list[str]) -> dict[str, Found]:
    """What each probe found, by name; `out` has it after each probe."""
    found: dict[str, Found] = {}
    for name in names:
        began = time.perf_counter()
        try:
            found[name] = PROBES[name](num_images)
        except Exception:
            found[name] = {"error": traceback.format_exc()}
        found[name]["seconds"] = round(time.perf_counter() - began, 1)
        out.write_text(json.dumps(found, indent=2) + "\n")
        print(name, json.dumps(found[name]), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--batch", type=int, default=384, help="images of a training step and crops of a resize")
    parser.add_argument("--only", default=",".join(PROBES), help="probes by name, with commas between")
    options = parser.parse_args()
    names = options.only.split(",")
    if unknown := set(names) - set(PROBES):
        parser.error(f"--only: no probe {', '.join(sorted(unknown))}; there are {', '.join(PROBES)}")
    found = measure(options.out, options.batch, names)
    failed = [name for name in names if "error" in found[name]]
    raise SystemExit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
