"""Facts about ImageNet-1k (ILSVRC 2012): counts and channel statistics.

Source: Russakovsky et al., arXiv 1409.0575 (counts); torchvision's model zoo (mean and std of RGB in [0, 1]).
"""

NUM_CLASSES = 1000
NUM_TRAIN = 1_281_167
NUM_VAL = 50_000
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
