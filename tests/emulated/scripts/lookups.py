"""Rows chosen by integers: no size comes from their values, and what is chosen is known as that which it is from."""

import torch

table = torch.randn(50_000, 512, device="cuda")
places = torch.randint(0, 50_000, (4096,), device="cuda")
torch.cuda.reset_peak_memory_stats()
before = torch.cuda.memory_allocated()
rows = table[places]
assert rows.shape == (4096, 512)
assert torch.cuda.max_memory_allocated() - before == rows.nbytes
assert table[places[:8], torch.arange(8, device="cuda")].shape == (8,)

zeros, known = torch.zeros(4096, 1024, device="cuda"), torch.tensor([3, 0, 3], device="cuda")
small = torch.tensor([[0.5, 2.0], [3.0, 4.0]], device="cuda")
assert small[torch.tensor([1, 0, 1], device="cuda")].tolist() == [[3, 4], [0.5, 2], [3, 4]]  # true
assert small[known[1:2], known[1:2]].tolist() == [0.5]  # true
for chosen in (
    zeros[known],
    zeros.index_select(0, known),
    torch.nn.functional.embedding(known, zeros),
    zeros.gather(0, known.expand(1024, 3).t()),
):
    assert chosen.shape == (3, 1024)
    assert chosen[2, 5].item() == 0  # true
    assert (chosen + 1)[0, 1].item() == 1  # true
assert zeros[places % 4096][4000, 3].item() == 0  # made up

# What is written into a part of a memory does not fill the rest.
totals = torch.zeros(4, device="cuda")
torch.sum(zeros + 1, (0, 1), out=totals[1:2].squeeze())
assert totals[3].item() != zeros.numel()  # made up
