"""The virtual GPU as a device: its budget, error messages, statistics and tensor subclasses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from memtune.allocator import AllocatorSettings
from memtune.units import GIB, MIB
from memtune_runner.virtual.gpu import VirtualGpu


@pytest.fixture
def one_rank() -> Iterator[None]:
    distributed.init_process_group("gloo", store=torch._C._distributed_c10d.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def current_bytes(gpu: VirtualGpu) -> int:
    return gpu.memory_stats()["requested_bytes.all.current"]


def test_over_the_budget_it_speaks_as_cuda_does() -> None:
    with VirtualGpu(64 * MIB) as gpu:
        kept = [torch.empty(20 * MIB, dtype=torch.uint8) for _ in range(3)]
        with pytest.raises(torch.OutOfMemoryError) as caught:
            torch.empty(20 * MIB, dtype=torch.uint8)
        del kept
    assert str(caught.value).startswith(
        "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 64.00 MiB of which 4.00 MiB is "
        "free. Of the allocated memory 60.00 MiB is allocated by PyTorch, and 0 bytes is reserved by PyTorch"
    )
    assert "virtual" in str(caught.value)
    assert gpu.memory_stats()["num_ooms"] == 1
    assert gpu.memory_stats()["num_alloc_retries"] == 1


def test_memory_is_there_again_after_an_out_of_memory_was_caught() -> None:
    with VirtualGpu(32 * MIB) as gpu:
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(40 * MIB, dtype=torch.uint8)
        half = torch.empty(16 * MIB, dtype=torch.uint8)
        assert current_bytes(gpu) == half.nbytes


def test_activations_saved_for_backward_count_until_backward_frees_them() -> None:
    with VirtualGpu(GIB) as gpu:
        weight = torch.zeros(256, 256, requires_grad=True)
        hidden = torch.zeros(64, 256)
        held = current_bytes(gpu)
        loss = (hidden @ weight).exp().sum()
        # The product dies at once, the exponential is saved for backward although no name holds it.
        assert current_bytes(gpu) - held == 64 * 256 * 4 + 4
        torch.autograd.backward(loss)
        del loss
        assert weight.grad is not None
        assert current_bytes(gpu) - held == weight.grad.nbytes


def test_statistics_have_the_names_of_torch() -> None:
    with VirtualGpu(GIB) as gpu:
        small = torch.empty(100)
        stats = gpu.memory_stats()
        del small
        gpu.empty_cache()
        after = gpu.memory_stats()
    assert stats["requested_bytes.all.current"] == 400
    assert stats["allocated_bytes.all.current"] == stats["active_bytes.all.current"] == 512
    assert stats["reserved_bytes.all.current"] == 2 * MIB
    assert after["reserved_bytes.all.current"] == 0
    assert after["reserved_bytes.all.peak"] == 2 * MIB


def test_peaks_start_anew_after_a_reset() -> None:
    with VirtualGpu(GIB) as gpu:
        torch.empty(MIB, dtype=torch.uint8)
        gpu.reset_peak_memory_stats()
        torch.empty(MIB // 2, dtype=torch.uint8)
        assert gpu.memory_stats()["requested_bytes.all.peak"] == MIB // 2


def test_budget_shrinks_at_the_step_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with VirtualGpu(GIB, budget_from_step={2: 10 * MIB}) as gpu:
        gpu.step_ended()
        torch.empty(100 * MIB, dtype=torch.uint8)
        gpu.step_ended()
        with pytest.raises(torch.OutOfMemoryError, match=r"total capacity of 10\.00 MiB"):
            torch.empty(100 * MIB, dtype=torch.uint8)
    assert "rehearsal: the virtual GPU has 10.00 MiB from here on" in capsys.readouterr().err


def test_memory_that_was_lost_before_is_lost_from_the_start() -> None:
    with VirtualGpu(GIB, budget_from_step={0: 10 * MIB}) as gpu:
        assert gpu.budget_bytes == 10 * MIB
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(100 * MIB, dtype=torch.uint8)


def test_settings_of_the_allocator_are_kept() -> None:
    with VirtualGpu(GIB, AllocatorSettings(expandable_segments=True)) as gpu:
        kept = torch.empty(30 * MIB, dtype=torch.uint8)
        assert gpu.memory_stats()["reserved_bytes.all.current"] == 40 * MIB, "two pages of 20 MiB"
        del kept


@pytest.mark.parametrize("grow", [torch.Tensor.resize_, lambda t, n: t.untyped_storage().resize_(n * 4)])
def test_a_resized_storage_counts_with_its_new_size(grow) -> None:  # type: ignore[no-untyped-def]  # two call shapes
    with VirtualGpu(GIB) as gpu:
        tensor = torch.zeros(1000)
        grow(tensor, 5000)
        assert current_bytes(gpu) == 20_000
        tensor.untyped_storage().resize_(0)
        assert current_bytes(gpu) == 0
        tensor.untyped_storage().resize_(8000)
        assert current_bytes(gpu) == 8000
        with pytest.raises(torch.OutOfMemoryError):
            tensor.untyped_storage().resize_(2 * GIB)
        assert tensor.untyped_storage().nbytes() == 8000


def test_leaving_restores_torch() -> None:
    inherited = torch.UntypedStorage.resize_
    with pytest.raises(ZeroDivisionError), VirtualGpu(GIB):
        raise ZeroDivisionError
    assert torch.UntypedStorage.resize_ is inherited
    with VirtualGpu(GIB):
        assert torch.UntypedStorage.resize_ is not inherited


def test_two_virtual_gpus_at_once_are_refused() -> None:
    with VirtualGpu(GIB), pytest.raises(RuntimeError, match="active already"), VirtualGpu(GIB):
        pass


def test_only_tensors_of_the_training_thread_count() -> None:
    """docs/concepts.md says so: host memory cannot be told apart, unless another thread holds it."""
    with VirtualGpu(64 * MIB) as gpu, ThreadPoolExecutor(1) as loader:
        elsewhere = loader.submit(torch.zeros, MIB).result()
        assert current_bytes(gpu) == 0
        batch = torch.stack([torch.zeros(MIB // 8)] * 2)
        assert current_bytes(gpu) == batch.nbytes == MIB
        batch = batch.to("cpu", non_blocking=True)
        assert current_bytes(gpu) == MIB, "it moves to where it is already"
        assert elsewhere.add_(1).nbytes == 4 * MIB
        assert current_bytes(gpu) == 5 * MIB


def test_fake_and_meta_tensors_cost_nothing() -> None:
    with VirtualGpu(MIB) as gpu:
        with FakeTensorMode():
            torch.empty(GIB).add(1)
        torch.empty(GIB, device="meta").add(1)
        assert current_bytes(gpu) == 0


@pytest.mark.parametrize(
    ("convert", "parts_bytes"),
    [
        (torch.Tensor.to_sparse, 100 * (4 + 2 * 8)),
        # Of the two rows of indices that the conversion made, one is used and both are kept.
        (torch.Tensor.to_sparse_csr, 100 * (4 + 2 * 8) + 101 * 8),
        (torch.Tensor.to_sparse_csc, 100 * (4 + 2 * 8) + 101 * 8),
        (torch.Tensor.to_mkldnn, 0),
    ],
)
@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")  # torch calls its sparse layouts a beta
def test_a_sparse_tensor_counts_by_its_parts(convert: Callable[[torch.Tensor], torch.Tensor], parts_bytes: int) -> None:
    dense = torch.eye(100)
    with VirtualGpu(GIB) as gpu:
        sparse = convert(dense)
        assert current_bytes(gpu) - dense.nbytes == parts_bytes
        del sparse
        assert current_bytes(gpu) == dense.nbytes


@pytest.mark.usefixtures("one_rank")
def test_a_distributed_tensor_counts_by_its_local_part() -> None:
    with VirtualGpu(GIB) as gpu:
        mesh = init_device_mesh("cpu", (1,))
        held = current_bytes(gpu)
        local = torch.zeros(1000)
        tensor = DTensor.from_local(local, mesh, [Shard(0)])
        total = tensor + tensor
        assert current_bytes(gpu) - held == 8000
        del local, tensor, total
        assert current_bytes(gpu) - held == 0


@pytest.mark.usefixtures("one_rank")
def test_fsdp_frees_its_unsharded_parameters() -> None:
    with VirtualGpu(GIB) as gpu:
        model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(4)))
        mesh = init_device_mesh("cpu", (1,))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        inputs = torch.zeros(2, 256)
        model(inputs).sum().backward()
        sharded_bytes = 4 * (256 * 256 + 256) * 4
        gpu.reset_peak_memory_stats()
        before = current_bytes(gpu)
        assert before < 2.1 * sharded_bytes, "weights and gradients, and nothing unsharded"
        model(inputs).sum().backward()
        assert before < gpu.memory_stats()["requested_bytes.all.peak"]
        assert current_bytes(gpu) <= before + inputs.nbytes


def attended(dropout: float, **options: Any) -> tuple[torch.Tensor, ...]:
    """Return attention over 64 positions, the gradients of its inputs, and the next random number."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 4, 64, 16, requires_grad=True) for _ in range(3))
    mixed = functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, **options)
    return mixed, *torch.autograd.grad(mixed.square().sum(), (query, key, value)), torch.rand(1)


@pytest.mark.parametrize("options", [{"is_causal": True}, {"attn_mask": torch.eye(64).bool()}, {"scale": 0.1}])
def test_attention_with_dropout_matches_torch(options: dict[str, Any]) -> None:
    plain = attended(0.3, **options)
    with VirtualGpu(GIB):
        for ours, theirs in zip(attended(0.3, **options), plain, strict=True):
            assert torch.equal(ours, theirs)


def test_attention_without_a_gpu_kernel_is_left_to_torch() -> None:
    bias = torch.zeros(64, 64, requires_grad=True)
    heads = torch.randn(1, 1, 64, 16)
    with VirtualGpu(GIB):
        flat = functional.scaled_dot_product_attention(heads[0], heads[0], heads[0], dropout_p=0.5)
        assert flat.shape == (1, 64, 16)
        mixed = functional.scaled_dot_product_attention(heads, heads, heads, attn_mask=bias, dropout_p=0.5)
        torch.autograd.backward(mixed.sum())
        rows = torch.randn(2, 1, 64, 16)
        shared = functional.scaled_dot_product_attention(heads, rows, rows, dropout_p=0.5)
        assert shared.shape == (2, 1, 64, 16)
    assert bias.grad is not None


def test_shared_heads_in_32_bits_keep_their_scores_with_dropout_too() -> None:
    query, few = torch.randn(2, 4, 256, 16, requires_grad=True), torch.randn(2, 2, 256, 16)
    with VirtualGpu(GIB) as gpu:
        mixed = functional.scaled_dot_product_attention(query, few, few, dropout_p=0.1, enable_gqa=True)
        assert gpu.memory_stats()["requested_bytes.all.current"] > 4 * 2 * 4 * 256 * 256
    torch.autograd.backward(mixed.sum())


@pytest.mark.parametrize("checkpointed", [False, True])
def test_attention_with_dropout_keeps_no_scores(checkpointed: bool) -> None:
    def peak(dropout: float) -> int:
        with VirtualGpu(GIB) as gpu:
            inputs = [torch.randn(2, 4, 512, 16, requires_grad=True) for _ in range(3)]
            attend = partial(functional.scaled_dot_product_attention, dropout_p=dropout, is_causal=True)
            mixed = checkpoint(attend, *inputs, use_reentrant=False) if checkpointed else attend(*inputs)
            torch.autograd.backward(mixed.sum())
            return gpu.memory_stats()["requested_bytes.all.peak"]

    scores_bytes = 4 * 2 * 4 * 512 * 512
    assert peak(0.1) < peak(0.0) + 0.1 * scores_bytes
