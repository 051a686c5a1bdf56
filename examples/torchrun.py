"""Several processes share the images by themselves: torchrun --nproc-per-node=2 examples/torchrun.py DATA_FOLDER

DATA_FOLDER has train/<class>/*.jpg.
"""

import sys

import timm
import torch
from torch import distributed

import imagenet_opt

distributed.init_process_group()
with imagenet_opt.loader(sys.argv[1], global_batch_size=100, image_size=48) as train:
    net = timm.create_model("resnet10t", num_classes=len(train.classes)).to(train.device)
    net = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(2):
        for images, labels in train:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(net(images), labels)
            loss.backward()
            optimizer.step()
        print(f"process {distributed.get_rank()}, epoch {epoch}: {len(labels)} images a step, loss {loss.item():.2f}")
distributed.destroy_process_group()
