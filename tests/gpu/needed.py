"""Whether run.sh can run here: `python tests/gpu/needed.py`; it names what is missing, with status 1."""

import importlib
import os
import sys

MODULES = {
    "torch": "torch",
    "torchvision": "torchvision",
    "triton": "triton",
    "lightning.pytorch": "lightning",
    "timm": "timm",
    "huggingface_hub": "huggingface-hub",
    "hydra.utils": "hydra-core",
    "omegaconf": "omegaconf",
    "antlr4": "antlr4-python3-runtime==4.9.3",
    "numpy": "numpy",
    "PIL.Image": "pillow",
    "filelock": "filelock",
    "psutil": "psutil",
    "pydantic": "pydantic",
    "pynvml": "nvidia-ml-py",
    "nvidia.nvimgcodec": "nvidia-nvimgcodec-cu13",
    "rich.live": "rich",
    "plotly.graph_objects": "plotly",
    "jinja2": "jinja2",
    "safetensors": "safetensors",
    "yaml": "pyyaml",
    "pytest": "pytest",
}
"""Module -> package to install. Without nvimgcodec other decoders would step in, and the loader would be too slow."""


def missing() -> list[str]:
    """Packages that cannot be imported, and why."""
    os.environ.setdefault("PYNVIMGCODEC_VERBOSITY", "0")
    found = []
    for module, package in MODULES.items():
        try:
            importlib.import_module(module)
        except Exception as error:  # libraries that do not load raise what they like
            found.append(f"  {package}: {error}")
    return found


def main() -> None:
    if found := missing():
        print("run.sh needs what cannot be imported here:", *found, sep="\n")
        sys.exit(1)
    import torch

    if not torch.cuda.is_available():
        print("run.sh needs a CUDA device; torch sees none")
        sys.exit(1)


if __name__ == "__main__":
    main()
