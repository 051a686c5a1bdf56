"""A plain PyTorch loop that resumes at the next batch: python examples/plain_loop.py DATA_FOLDER

DATA_FOLDER has train/<class>/*.jpg. Stop the loop and start it again: it continues after the last step in loop.pt.
"""

import sys
from pathlib import Path

import timm
import torch

import imagenet_opt

with imagenet_opt.loader(sys.argv[1], batch_size=50, image_size=48) as train:
    net = timm.create_model("resnet10t", num_classes=len(train.classes)).to(train.device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    parts = {"net": net, "optimizer": optimizer, "loader": train}
    if Path("loop.pt").exists():
        for name, state in torch.load("loop.pt", weights_only=True).items():
            parts[name].load_state_dict(state)
    for epoch in range(train.epoch, 2):
        for batch in train:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(batch.images), batch.labels).backward()
            optimizer.step()
            torch.save({name: part.state_dict() for name, part in parts.items()}, "loop.new")  # or every tenth step
            Path("loop.new").replace("loop.pt")
            print(f"epoch {epoch}, step {batch.key.step}, images {batch.indices[:4].tolist()} and others")
