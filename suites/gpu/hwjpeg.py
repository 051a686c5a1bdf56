"""JPEGs decoded by the GPU, whole, beside the region decode of one CPU core: `hwjpeg.py IMAGES` (class folders).

torchvision's decode_jpeg hands a list to nvJPEG, which uses the decoders of the GPU where it has them (A100, H100; an
A10G has none). $KEEP/result.json gets images per second by batch and threads, with an idle and with a computing GPU.
"""

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torchvision.io import ImageReadMode, decode_jpeg

from imagenet_opt.data.decode.decoder import Decoder
from suites.gpu.ceiling import DEVICE, ON_GPU, keep, settle

BATCHES, THREADS, SECONDS = ((64, 128, 384), (1, 2, 4), 1.5) if ON_GPU else ((4,), (1, 2), 0.1)


def rate(files: list[Tensor], batch: int, threads: int) -> float:
    """Images per second of so many threads together."""
    began = time.perf_counter()

    def work(number: int) -> int:
        done = 0
        while time.perf_counter() < began + SECONDS:
            part = [files[(number * 37 + done + i) % len(files)] for i in range(batch)]
            decode_jpeg(part, ImageReadMode.RGB, device=DEVICE)
            done += batch
        return done

    with ThreadPoolExecutor(threads) as pool:
        done = sum(pool.map(work, range(threads)))
    settle()
    return round(done / (time.perf_counter() - began), 1)


def beside_products(files: list[Tensor]) -> dict[str, float]:
    """Images per second of two threads, and matrix products per second before and meanwhile."""
    factor, stop, done = torch.randn(8192, 8192, device=DEVICE, dtype=torch.bfloat16), threading.Event(), [0]

    def compute() -> None:
        while not stop.is_set():
            for _ in range(10):
                torch.mm(factor, factor)
            torch.cuda.synchronize()
            done[0] += 10

    (busy := threading.Thread(target=compute)).start()
    time.sleep(1)  # until the library has started
    counts = [done[0]]
    time.sleep(SECONDS)
    counts.append(done[0])
    began, found = time.perf_counter(), {"images_per_second": rate(files, 128, 2)}
    seconds = time.perf_counter() - began
    counts.append(done[0])
    stop.set()
    busy.join()
    alone, beside = counts[1] - counts[0], counts[2] - counts[1]
    return found | {"products_per_second_alone": alone / SECONDS, "products_per_second": beside / seconds}


def region_decode_ms(encoded: list[bytes]) -> float:
    """Of the middle of an image, nine sixteenths of its area, on one core."""
    decoder = Decoder(exif_rotation=False, max_crop_pixels=2**22)
    opened = [decoder.open(one, "image") for one in encoded]
    began = time.perf_counter()
    for one in opened:
        decoder.crop(one, (one.height // 8, one.width // 8, one.height * 3 // 4, one.width * 3 // 4))
    return round(1e3 * (time.perf_counter() - began) / len(opened), 3)


def main(folder: Path) -> None:
    originals = {file.resolve() for file in folder.glob("*/*") if file.suffix.lower() in (".jpg", ".jpeg")}
    encoded = [file.read_bytes() for file in sorted(originals)]
    files = [torch.frombuffer(bytearray(one), dtype=torch.uint8) for one in encoded]
    found: dict[str, Any] = {"num_files": len(files), "mean_kb": round(sum(map(len, encoded)) / len(files) / 1e3, 1)}
    found["region_decode_of_one_core_ms"] = region_decode_ms(encoded)
    rate(files, BATCHES[0], 1)  # starts the library
    for batch in BATCHES:
        for threads in THREADS:
            found[f"batch {batch}, threads {threads}, images/s"] = rate(files, batch, threads)
    if ON_GPU:
        found["beside products, batch 128, threads 2"] = beside_products(files)
    keep(found)
    print(found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
