"""ImageNet's mean and deviation of RGB in [0, 1], as in torchvision's model zoo."""

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
