"""Host memory of a pod: numbers worked out by hand for a model of exactly known size."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memtune.gpus.gpu import find
from memtune.memory.host_memory import HostMemory, host_memory, offloaded_bytes, pinned_bytes
from memtune.memory.workload import Workload
from memtune.model.architecture import Adapter, Architecture, Kind
from memtune.model.count import adapter_parameters, parameters
from memtune.plans.plan import Plan
from memtune.units import GIB, MIB

LLAMA_2_7B = Architecture("llama-2-7b", Kind.DECODER, 4096, 32, 32, 32, 128, 11008, 32000)
P = 6_738_415_616  # the published count of meta-llama/Llama-2-7b
EIGHT = Workload(LLAMA_2_7B, find("h100-80gb"), global_batch=64, sequence_length=4096, gpus_per_node=8)
TWO_BY_EIGHT = replace(EIGHT, nodes=2)


def terms(memory: HostMemory) -> dict[str, int]:
    return {term.name: term.bytes for term in (*memory.running, *memory.loading, *memory.saving)}


def test_the_model_is_the_one_of_the_hand_computed_numbers() -> None:
    assert parameters(LLAMA_2_7B).total == P


def test_without_offload_a_pod_holds_processes_loaders_and_one_load_of_the_weights_per_rank() -> None:
    memory = host_memory(EIGHT, Plan.parse("bf16-z1-sel-mb2x4"))
    found = terms(memory)
    assert found["processes"] == 8 * 2 * GIB
    # 8 ranks x 2 workers x (256 MiB + 2 batches x 2 x 4,096 tokens x 24 B).
    assert found["data loader"] == 16 * (256 * MIB + 2 * 2 * 4096 * 24)
    assert found["loading"] == 8 * 2 * P
    assert found["saving"] == 0
    # Loading is the peak: 16 GiB of processes and eight times 12.6 GiB of weights.
    assert memory.required_bytes == 16 * GIB + 16 * P
    assert memory.shared_bytes == 16 * 2 * 2 * 4096 * 24 + GIB


def test_optimizer_offload_pins_masters_gradients_and_a_transfer_buffer() -> None:
    found = terms(host_memory(EIGHT, Plan.parse("bf16-z2-sel-mb2x4-oopt")))
    # P / 8 = 842,301,952 elements: 3.14 GiB in fp32 is pinned as 4 GiB, 1.57 GiB in bf16 as 2 GiB; moments 8 B each.
    assert found["offloaded optimizer"] == 8 * ((4 + 4 + 2) * GIB + 8 * 842_301_952)
    # On two nodes each pod holds half of everything.
    found = terms(host_memory(TWO_BY_EIGHT, Plan.parse("bf16-z2-sel-mb2x2-oopt")))
    assert found["offloaded optimizer"] == 8 * ((2 + 2 + 1) * GIB + 8 * 421_150_976)


def test_offloaded_states_are_the_only_difference_in_host_memory() -> None:
    assert offloaded_bytes(EIGHT, Plan.parse("bf16-z2-sel-mb2x4")) == 0
    for offload in ("oopt", "oparam", "onvme"):
        plan = Plan.parse(f"bf16-z3-sel-mb2x4-{offload}")
        terms = [term for term in host_memory(EIGHT, plan).running if term.name.startswith(("offloaded", "nvme"))]
        assert offloaded_bytes(EIGHT, plan) == sum(term.bytes for term in terms) > 0
    assert offloaded_bytes(EIGHT, Plan.parse("bf16-z2-sel-mb2x4-oact"), 3 * GIB) == 8 * 4 * GIB


def test_parameter_offload_adds_the_weights_and_saves_them_gathered() -> None:
    found = terms(host_memory(EIGHT, Plan.parse("bf16-z3-sel-mb2x4-oparam")))
    assert found["offloaded parameters"] == 8 * 2 * GIB
    assert found["saving"] == 2 * P
    assert found["loading"] == 8 * 5_000_000_000


def test_a_large_shard_is_pinned_sub_group_by_sub_group() -> None:
    # On one GPU all 6.74e9 elements: six sub-groups of 1e9, and a rest of 738,415,616.
    one = replace(EIGHT, gpus_per_node=1)
    found = terms(host_memory(one, Plan.parse("bf16-z3-sel-mb2x32-oopt")))
    pinned = 6 * (4 + 4 + 2) * GIB + (4 + 4 + 2) * GIB
    assert found["offloaded optimizer"] == pinned + 8 * P
    assert "nccl" in found
    assert found["nccl"] == 0


def test_fsdp_and_nvme_keep_their_own_buffers() -> None:
    found = terms(host_memory(EIGHT, Plan.parse("bf16-fsdp-sel-mb2x4-oparam")))
    assert found["offloaded parameters and optimizer"] == pytest.approx(8 * (8 * 1.44 + 8) * 842_301_952, abs=8)
    assert found["saving"] == 4 * P
    # 4 buffers of 3.14 GiB pinned as 4 GiB, and DeepSpeed's five parameter buffers of 2e8 bytes.
    found = terms(host_memory(EIGHT, Plan.parse("bf16-z3-sel-mb2x4-onvme")))
    assert found["nvme buffers"] == 8 * (16 * GIB + 1_000_000_000)


def test_muon_offloads_two_moments_of_weights_outside_the_blocks() -> None:
    found = terms(host_memory(EIGHT, Plan.parse("bf16-fsdp-sel-mb2x4-muon-oparam")))
    # Embedding and head of 32,000 x 4,096 and the last norm, 4,096; one moment, of fp32, of each other weight.
    outside = (2 * 32_000 * 4096 + 4096) // 8
    one_moment = 8 * (8 * 1.44 + 4) * 842_301_952
    assert found["offloaded parameters and optimizer"] == pytest.approx(one_moment + 8 * 4 * outside, abs=8)


def test_hybrid_shards_are_those_of_one_node() -> None:
    hybrid = host_memory(TWO_BY_EIGHT, Plan.parse("bf16-fsdphyb-sel-mb2x2-oparam"))
    alone = host_memory(EIGHT, Plan.parse("bf16-fsdp-sel-mb2x4-oparam"))
    name = "offloaded parameters and optimizer"
    assert terms(hybrid)[name] == terms(alone)[name]


def test_offloaded_activations_are_pinned() -> None:
    memory = host_memory(EIGHT, Plan.parse("bf16-z2-none-mb2x4-oact"), activation_bytes=9 * GIB)
    assert terms(memory)["offloaded activations"] == 8 * 16 * GIB


def test_an_adapter_offloads_only_trained_weights() -> None:
    adapter = Adapter(rank=16, targets=("q_proj", "v_proj"))
    learning = adapter_parameters(LLAMA_2_7B, adapter)
    assert learning == 32 * 2 * 16 * (4096 + 4096)
    found = terms(host_memory(replace(EIGHT, adapter=adapter), Plan.parse("bf16-z2-sel-mb2x4-oopt")))
    # 8,388,608 / 8 = 2^20 elements: 4, 4 and 2 MiB pinned, 8 MiB of moments.
    assert found["offloaded optimizer"] == 8 * 18 * MIB


def test_a_conversion_reads_one_ranks_states_at_a_time() -> None:
    found = host_memory(EIGHT, Plan.parse("bf16-z2-sel-mb2x4"))
    assert found.converting.bytes == 2 * GIB + 12 * P // 8 + 2 * P
    # Eight processes load their models in parallel, so converting takes less than what follows.
    assert found.converting_bytes == found.required_bytes
    one = host_memory(replace(EIGHT, gpus_per_node=1), Plan.parse("bf16-z2-sel-mb2x4"))
    assert one.converting_bytes == one.converting.bytes == 2 * GIB + 14 * P > one.required_bytes


@pytest.mark.parametrize(("size", "pinned"), [(0, 0), (1, 1), (3, 4), (4, 4), (GIB, GIB), (GIB + 1, 2 * GIB)])
def test_pinned_memory_comes_in_powers_of_two(size: int, pinned: int) -> None:
    assert pinned_bytes(size) == pinned


def test_offloaded_parameters_are_as_wide_as_the_plan_computes() -> None:
    def offloaded(plan: str) -> str:
        found = host_memory(EIGHT, Plan.parse(plan))
        return next(term.formula for term in found.running if term.name == "offloaded parameters")

    assert offloaded("bf16-z3-full-mb1x8-oparam").startswith("8 ranks x 2 B x")
    assert offloaded("fp32-z3-full-mb1x8-oparam-sdpa").startswith("8 ranks x 4 B x")
