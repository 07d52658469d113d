"""Makes tensors that are far too large for the host, and asks what is in them."""

import torch

SIZE = 1 << 30
zeros = torch.zeros(SIZE, device="cuda")
assert zeros.sum().item() == 0.0
assert zeros.new_ones(SIZE).max().item() == 1.0
assert torch.full((SIZE,), 3.0, device="cuda").mean().item() == 3.0
assert zeros.new_full((2, SIZE), 4.0).min().item() == 4.0
assert torch.full((SIZE,), 2.7, dtype=torch.int32, device="cuda").sum().item() == 2 * SIZE
assert torch.full((SIZE,), 5, dtype=torch.bool, device="cuda").sum().item() == SIZE
