"""Copies of whole storages, which torch makes of bytes: the numbers in them stay what they are."""

import copy
import io

import torch

large = torch.ones(2048, 2048, device="cuda")
torch.save(large, io.BytesIO())
assert large[0, 0].item() == 1  # after a save
assert copy.deepcopy(large)[0, 0].item() == 1  # of a large copy
assert large[0, 0].item() == 1  # of what was copied

small = torch.tensor([0.5, 2.0], device="cuda")
assert copy.deepcopy(small).tolist() == [0.5, 2]  # of a small copy

hidden = torch.nn.Linear(4096, 4096).cuda()(torch.randn(16, 4096, device="cuda")).detach()
assert copy.deepcopy(hidden)[0, 0].item() == 1  # of what was never computed
assert hidden.clone()[0, 0].item() == 1  # of what was never computed

# A part of a memory that is overwritten leaves the rest as it was.
rows = torch.zeros(4, 8, device="cuda")
rows[1] = hidden[0, :8]
assert rows[:2, 0].tolist() == [0, 1]  # of a part

# What is saved, and loaded again, is the number and not its bytes.
halves = (hidden[:4].clone() * 0.5).to(torch.bfloat16)
file = io.BytesIO()
torch.save({"halves": halves}, file)
file.seek(0)
assert torch.load(file)["halves"][2, 5].item() == 0.5
halves[0] = 3
assert halves[:2, 1].tolist() == [3, 0.5]  # of a part

# What is written or read in another type is bytes of the numbers.
ones = torch.empty(64, device="cuda").fill_(1.0)
ones.view(torch.uint8)[:16].zero_()
assert ones[[0, 3, 4, 63]].tolist() == [0, 0, 1, 1]  # of bytes
halves = torch.empty(8, dtype=torch.bfloat16, device="cuda").fill_(1.0)
assert halves.view(torch.uint8)[:3].clone().tolist() == [128, 63, 128]  # of bytes
assert halves.view(torch.uint8)[1:].tolist() == [63] + [128, 63] * 7  # of bytes
assert halves.view(torch.float16)[0].item() == 1.875  # of bytes
assert (halves.view(torch.int32) + 1)[1].item() == 0x3F803F81  # of bytes
assert torch.empty(8, device="cuda").fill_(1.5).view(torch.int32)[0].item() == 0x3FC00000  # of bytes
pairs = torch.empty(8, 2, device="cuda").fill_(2.0)
assert torch.view_as_complex(pairs)[0].item() == 2 + 2j  # of bytes
assert pairs.view(torch.uint8).t().contiguous()[3].tolist() == [64] * 8  # of bytes
swapped = torch.empty(8, 8, dtype=torch.uint8, device="cuda")
swapped.copy_(pairs.view(torch.uint8).t())
assert swapped[3].tolist() == [64] * 8  # of bytes
row = torch.ones_like(large[0])
assert row.view(torch.uint8)[:100].cpu()[:4].tolist() == [0, 0, 128, 63]  # of true bytes
assert row.view(torch.int32)[0].item() == 0x3F800000  # of true bytes
assert (large.view(torch.int32) + 1)[0, 5].item() == 0x3F800001  # of true bytes

# Where they are too many to be computed, nothing is known of the result, which counts as ones.
assert (large.view(torch.float16) + 1)[0, 5].item() == 1  # of many bytes
large.view(torch.uint8)[0, :16].zero_()
assert large[0, 0].item() == 1  # of many bytes

# What is overwritten in whole is of the new type, however large.
halves = large.view(torch.float16)
halves.zero_()
assert halves[0, 1].item() == 0  # of many bytes
large.copy_(torch.full((2048, 2048), 3, dtype=torch.bfloat16, device="cuda"))
assert large[0, 0].item() == 3  # of many bytes
