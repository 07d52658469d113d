"""What calls cuDNN's recurrent networks, cuSOLVER, cuFFT and cuSPARSE; an assertion fails where they would mislead."""

import torch

STEPS, ROWS, WIDTH, HIDDEN, LAYERS = 32, 8, 64, 128, 2

for kind, options in (
    (torch.nn.LSTM, {}),
    (torch.nn.LSTM, {"proj_size": 32}),
    (torch.nn.GRU, {"bidirectional": True}),
    (torch.nn.RNN, {"dropout": 0.1}),
):
    network = kind(WIDTH, HIDDEN, LAYERS, **options).cuda()
    weights = list(network.parameters())
    assert len({each.untyped_storage().data_ptr() for each in weights}) == 1, "not where cuDNN has them"
    assert weights[0].untyped_storage().nbytes() == 4 * sum(each.numel() for each in weights)
    network(torch.randn(STEPS, ROWS, WIDTH, device="cuda"))[0].sum().backward()
    assert all(each.grad is not None for each in weights)

network = torch.nn.LSTM(WIDTH, HIDDEN, LAYERS).cuda()
before = torch.cuda.memory_allocated()
output, _ = network(torch.randn(STEPS, ROWS, WIDTH, device="cuda"))
print("kept", torch.cuda.memory_allocated() - before)

square = torch.randn(512, 512, device="cuda")
torch.linalg.svd(square)
torch.linalg.qr(square)
torch.linalg.cholesky_ex(square)
torch.linalg.eigh(square)
torch.fft.fft(square)

places = torch.tensor([[0, 1, 2, 0], [2, 0, 1, 2]], device="cuda")
sparse = torch.sparse_coo_tensor(places, torch.ones(4, device="cuda"), (4096, 4096)).coalesce()
assert sparse.indices().tolist() == [[0, 1, 2], [2, 0, 1]]
assert sparse.values().tolist() == [2, 1, 1]
assert torch.sparse.mm(sparse, torch.randn(4096, 64, device="cuda")).shape == (4096, 64)
assert (torch.eye(64, device="cuda").to_sparse_csr() @ square[:64]).shape == (64, 512)

embedding = torch.nn.Embedding(1000, 64, sparse=True).cuda()
embedding(torch.tensor([1, 2, 2, 5], device="cuda")).sum().backward()
torch.optim.SparseAdam(embedding.parameters()).step()
assert embedding.weight.grad is not None
assert embedding.weight.grad.coalesce()._nnz() == 3

scores, targets = torch.randn(50, 4, 20, device="cuda").log_softmax(2), torch.randint(1, 20, (4, 10), device="cuda")
scores.requires_grad_()
torch.nn.functional.ctc_loss(scores, targets, torch.full((4,), 50), torch.full((4,), 10)).backward()
assert scores.grad is not None
targets = torch.randint(1, 20, (40,), dtype=torch.int32)  # of one dimension, on the host: cuDNN's own
lengths, of_targets = torch.full((4,), 50, dtype=torch.int32), torch.full((4,), 10, dtype=torch.int32)
torch.nn.functional.ctc_loss(scores, targets, lengths, of_targets).backward()
