"""The Triton kernel compiles, on a machine without a GPU, for each GPU that it is meant for; none spills registers."""

import re
import subprocess
from pathlib import Path

import pytest

triton = pytest.importorskip("triton", reason="Triton is not installed")

CAPABILITIES = [75, 80, 86, 89, 90, 100, 120]
MOST_REGISTERS = {75: 64}
"""Of a thread, else 42: the 1,536 threads that an SM of an A10G (sm_86) holds, or the 1,024 of a T4 (sm_75), then share
its 65,536 registers. Seen with Triton 3.9, with area: 32 to 40; 53 (sm_75)."""


@pytest.mark.parametrize(
    ("capability", "dtype", "interpolation"),
    [
        *((capability, "bf16", "area") for capability in CAPABILITIES),
        *((86, "bf16", interpolation) for interpolation in ("bilinear", "bicubic")),
        *((86, dtype, "bilinear") for dtype in ("fp16", "fp32")),
    ],
)
def test_it_compiles_within_its_registers(capability: int, dtype: str, interpolation: str, tmp_path: Path) -> None:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from imagenet_opt.data.transforms.resize_kernel import _BLOCK, _resize

    if not isinstance(_resize, triton.JITFunction):
        pytest.skip("Triton's interpreter is on: nothing is compiled")
    tensors = ("*u8", "*i32", "*i32", "*i64", "*i1", "*fp32", f"*{dtype}", "i32", "i32", *["fp32"] * 6)
    signature = dict(zip(_resize.arg_names, tensors, strict=False))
    constants = {"INTERPOLATION": interpolation, "BLOCK": _BLOCK}
    kernel = triton.compile(
        ASTSource(fn=_resize, signature=signature | dict.fromkeys(constants, "constexpr"), constexprs=constants),
        target=GPUTarget("cuda", capability, 32),
    )
    assert len(kernel.asm["cubin"]) > 0
    assert kernel.metadata.shared == 0
    registers, spilled_bytes = resources(kernel.asm["ptx"], tmp_path)
    assert spilled_bytes == 0
    assert registers <= MOST_REGISTERS.get(capability, 42)


def resources(ptx: str, folder: Path) -> tuple[int, int]:
    """Registers of a thread, and bytes that it spills, as NVIDIA's assembler reports them."""
    assemblers = sorted((Path(triton.__file__).parent / "backends/nvidia/bin").glob("ptxas*"))
    architecture = re.search(r"^\.target (sm_\w+)", ptx, re.MULTILINE)
    source = folder / "kernel.ptx"
    source.write_text(ptx)
    reports = []
    for assembler in assemblers:  # Triton ships a newer one for the newest GPUs alone
        command = [assembler, "-v", f"--gpu-name={architecture[1]}", source, "-o", folder / "kernel.cubin"]
        outcome = subprocess.run(command, capture_output=True, text=True)
        if registers := re.search(r"Used (\d+) registers", outcome.stderr):
            spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", outcome.stderr)
            assert spills, outcome.stderr
            return int(registers[1]), sum(map(int, spills))
        reports.append(outcome.stderr)
    raise AssertionError("\n".join(reports) or "Triton's wheel has no assembler")
