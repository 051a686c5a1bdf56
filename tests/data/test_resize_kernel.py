"""The Triton kernel compiles for the GPUs that it is meant for, on a machine without one."""

import pytest

triton = pytest.importorskip("triton", reason="Triton is not installed")


@pytest.mark.parametrize("capability", [75, 80, 86, 90])
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_it_compiles_to_machine_code(capability: int, dtype: str) -> None:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from imagenet_opt.data.resize_kernel import _resize

    if not isinstance(_resize, triton.JITFunction):
        pytest.skip("Triton's interpreter is on: nothing is compiled")
    tensors = {"pixels": "*u8", "heights": "*i32", "widths": "*i32", "offsets": "*i64", "flips": "*i1"}
    numbers = {name: "fp32" for name in _resize.arg_names if name.startswith(("factor", "shift"))}
    signature = tensors | {"images": f"*{dtype}", "size": "i32", "BLOCK": "constexpr"} | numbers
    kernel = triton.compile(
        ASTSource(fn=_resize, signature=signature, constexprs={"BLOCK": 128}),
        target=GPUTarget("cuda", capability, 32),
    )
    assert len(kernel.asm["cubin"]) > 0
    assert kernel.metadata.shared == 0
