"""A module compiled for any batch: tensors in, tensors out, and weights that change."""

import torch
from torch import nn

import rlx

module = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4)).eval()
batch = torch.export.Dim("batch", min=1, max=512)
exe = rlx.compile(module, (torch.randn(2, 16),), dynamic_shapes=({0: batch},))

for size in (1, 7, 64):
    x = torch.randn(size, 16)
    torch.testing.assert_close(exe(x), module(x), rtol=1e-4, atol=1e-5)

with torch.no_grad():
    module[2].weight.mul_(0.5)  # noticed: what was packed of it is packed again
torch.testing.assert_close(exe(x), module(x), rtol=1e-4, atol=1e-5)
print(exe.explain())
