"""From a job, or a node's label, to a GPU."""

from __future__ import annotations

from typing import Any

import pytest

from memtune.gpu import GPUS
from memtune.gpu_products import of_product
from memtune.spec import Job, gpu_of, load_job
from memtune.units import GIB


def job(resources: dict[str, Any]) -> Job:
    training = {"globalBatchSize": 96, "sequenceLength": 128}
    spec = {"model": {"hfConfig": {}}, "training": training, "resources": resources}
    kind = {"apiVersion": "memtune.dev/v1alpha1", "kind": "MemoryTunedJob"}
    return load_job({**kind, "metadata": {"name": "a"}, "spec": spec})


# Labels as gpu-feature-discovery writes them.
@pytest.mark.parametrize(
    ("product", "name"),
    [
        ("NVIDIA-H100-80GB-HBM3", "h100-80gb"),
        ("NVIDIA-B200", "b200-180gb"),
        ("NVIDIA-H100-PCIe", "h100-pcie-80gb"),
        ("NVIDIA-H100-NVL", "h100-nvl-94gb"),
        ("NVIDIA-H200", "h200-141gb"),
        ("NVIDIA-GH200-480GB", "h100-96gb"),
        ("NVIDIA-A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA-A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA-L40S", "l40s-48gb"),
        ("NVIDIA-L4", "l4-24gb"),
        ("NVIDIA-A10", "a10-24gb"),
        ("NVIDIA-A10G", "a10g-24gb"),
        ("NVIDIA-RTX-A6000", "a6000-48gb"),
        ("NVIDIA-GeForce-RTX-4090", "rtx4090-24gb"),
        ("Tesla-V100-SXM2-32GB", "v100-32gb"),
        ("Tesla-T4", "t4-16gb"),
        ("h100-80gb", "h100-80gb"),
    ],
)
def test_a_product_label_finds_its_gpu(product: str, name: str) -> None:
    assert of_product(product) == GPUS[name]


def test_the_card_of_a_module_has_only_pcie_between_gpus() -> None:
    card, module = of_product("NVIDIA-A100-80GB-PCIe"), GPUS["a100-80gb"]
    assert card is not None
    assert (card.usable_bytes, card.bf16_flops) == (module.usable_bytes, module.bf16_flops)
    assert card.link_bytes_per_second == module.host_link_bytes_per_second < module.link_bytes_per_second


@pytest.mark.parametrize(
    "product", ["NVIDIA-GB200", "Tesla-V100-SXM2-16GB", "NVIDIA-L40", "NVIDIA-A100X", "NVIDIA-T400"]
)
def test_a_product_that_is_not_in_the_table_is_not_guessed(product: str) -> None:
    assert of_product(product) is None


def test_a_product_with_the_memory_it_is_sold_with_has_what_the_driver_gives() -> None:
    resources = {"gpuProduct": "NVIDIA-H100-80GB-HBM3", "gpuMemory": "80Gi"}
    assert gpu_of(job(resources)) == GPUS["h100-80gb"]
    assert gpu_of(job({"gpuProduct": "NVIDIA-H100-80GB-HBM3"})) == GPUS["h100-80gb"]


def test_a_slice_of_a_product_has_the_declared_memory() -> None:
    gpu = gpu_of(job({"gpuProduct": "NVIDIA-A100-SXM4-80GB", "gpuMemory": "40Gi"}))
    assert gpu == GPUS["a100-80gb"].with_memory(40 * GIB)


def test_memory_alone_takes_the_nearest_gpu_and_of_equals_the_slower() -> None:
    assert gpu_of(job({"gpuMemory": "80Gi"})) == GPUS["a100-80gb"]
    assert gpu_of(job({"gpuMemory": "64Gi"})) == GPUS["a100-80gb"].with_memory(64 * GIB)


def test_memory_alone_is_never_taken_for_a_gpu_without_bf16() -> None:
    gpu = gpu_of(job({"gpuMemory": "16Gi"}))
    assert gpu is not None
    assert gpu.bf16_flops > 0


def test_a_virtual_gpu_has_exactly_what_it_was_given() -> None:
    gpu = gpu_of(job({"gpuMemory": "80Gi", "device": "virtual"}))
    assert gpu is not None
    assert gpu.usable_bytes == 80 * GIB


def test_a_gpu_that_the_object_does_not_name_is_unknown() -> None:
    assert gpu_of(job({})) is None
    assert gpu_of(job({"gpuProduct": "NVIDIA-GB200"})) is None
