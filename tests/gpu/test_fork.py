"""Workers forked after CUDA was initialised still decode with nvImageCodec on their CPU."""

import io
import multiprocessing
import os
from multiprocessing.connection import Connection

import numpy as np
import torch
from PIL import Image


def decode_in_child(encoded: bytes, answer: Connection) -> None:
    os.environ["PYNVIMGCODEC_VERBOSITY"] = "0"
    from nvidia import nvimgcodec

    backends = [
        nvimgcodec.Backend(nvimgcodec.CPU_ONLY)
    ]  # without it nothing decodes; without the device id it needs CUDA
    decoder = nvimgcodec.Decoder(device_id=nvimgcodec.NVIMGCODEC_DEVICE_CPU_ONLY, backends=backends)
    answer.send(np.asarray(decoder.decode(encoded).cpu()))


def test_a_child_forked_after_cuda_decodes_on_the_cpu() -> None:
    torch.zeros(1, device="cuda")
    pixels = np.random.default_rng(0).integers(0, 255, (48, 64, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=95)
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    child = context.Process(target=decode_in_child, args=(buffer.getvalue(), there))
    child.start()
    assert here.poll(60), "the child did not answer"
    decoded = here.recv()
    child.join(10)
    assert decoded.shape == (48, 64, 3)
    assert np.abs(decoded.astype(int) - np.asarray(Image.open(buffer)).astype(int)).mean() < 2
