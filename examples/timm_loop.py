"""The loop of timm's train.py, where only the import of create_loader changes: python examples/timm_loop.py DATA_FOLDER

DATA_FOLDER has train/<class>/*.jpg and val/<class>/*.jpg.
"""

import sys

import timm
import torch
from timm.data import create_dataset
from timm.utils import accuracy

from imagenet_opt.timm import create_loader  # instead of timm.data

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
net = timm.create_model("resnet10t", num_classes=10).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
common = {"input_size": (3, 48, 48), "batch_size": 50, "num_workers": 2, "device": device}
train = create_loader(create_dataset("", sys.argv[1], "train"), is_training=True, **common)
val = create_loader(create_dataset("", sys.argv[1], "validation"), **common)
for epoch in range(2):
    for images, labels in train:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(images), labels).backward()
        optimizer.step()
    with torch.no_grad():
        right = sum(accuracy(net(images), labels)[0].item() * len(labels) for images, labels in val)
    print(f"epoch {epoch}: accuracy {right / len(val.dataset):.1f} %")
