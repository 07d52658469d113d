"""Convolution and batch norm in fp32, which torch gives to cuDNN; prints what training of the norm allocates."""

import torch
from torch import nn

images = torch.randn(8, 32, 64, 64, device="cuda")
norm = nn.BatchNorm2d(32).cuda()
before = torch.cuda.memory_allocated()
normed = norm(images)
print(torch.cuda.memory_allocated() - before)
nn.Conv2d(32, 4, 3).cuda()(normed).sum().backward()
# In the other order of dimensions cuDNN has other kernels.
nn.Conv2d(32, 4, 3).cuda()(norm(images.contiguous(memory_format=torch.channels_last))).sum().backward()
