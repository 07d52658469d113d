"""torch's own norms of rows, with and without autocast; prints the bytes of what each keeps and of its output."""

import torch
from torch import nn

for kind in (nn.RMSNorm, nn.LayerNorm):
    for autocast in (False, True):
        norm = kind(1024, device="cuda", dtype=torch.float32 if autocast else torch.bfloat16)
        rows = torch.randn(4096, 1024, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        before = torch.cuda.memory_allocated()
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            out = norm(rows)
        print(kind.__name__, autocast, torch.cuda.memory_allocated() - before)
        del out
