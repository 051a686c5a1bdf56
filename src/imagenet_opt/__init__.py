"""Train ResNet-50 on ImageNet at the speed of the GPU, not of the disk."""

__version__ = "0.1.0"
