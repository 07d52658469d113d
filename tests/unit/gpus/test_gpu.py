"""Finding a GPU from a job or a node's label."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from memtune.api import Job, gpu_notes, gpu_of, load_job, unknown_product
from memtune.gpus.gpu import GPUS, chip_of, closest, of_product
from memtune.units import GIB


def job(resources: dict[str, Any]) -> Job:
    training = {"globalBatchSize": 96, "sequenceLength": 128}
    spec = {"model": {"hfConfig": {}}, "training": training, "resources": resources}
    kind = {"apiVersion": "memtune.dev/v1alpha1", "kind": "MemoryTunedJob"}
    return load_job({**kind, "metadata": {"name": "a"}, "spec": spec})


# Labels of gpu-feature-discovery.
@pytest.mark.parametrize(
    ("product", "name"),
    [
        ("NVIDIA-H100-80GB-HBM3", "h100-80gb"),
        ("NVIDIA-B300-SXM6-AC", "b300-270gb"),
        ("NVIDIA-B200", "b200-180gb"),
        ("NVIDIA-H100-PCIe", "h100-pcie-80gb"),
        ("NVIDIA-H100-NVL", "h100-nvl-94gb"),
        ("NVIDIA-H200", "h200-141gb"),
        ("NVIDIA-H200-NVL", "h200-nvl-141gb"),
        ("NVIDIA-GH200-480GB", "h100-96gb"),
        ("NVIDIA-A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA-A100-SXM4-40GB", "a100-40gb"),
        ("A100-SXM4-40GB", "a100-40gb"),
        ("a100-40gb", "a100-40gb"),
        ("NVIDIA-L40S", "l40s-48gb"),
        ("NVIDIA-L4", "l4-24gb"),
        ("NVIDIA-A10", "a10-24gb"),
        ("NVIDIA-A10G", "a10g-24gb"),
        ("NVIDIA-RTX-PRO-6000-Blackwell-Workstation-Edition", "rtxpro6000-96gb"),
        ("NVIDIA-RTX-PRO-6000-Blackwell-Max-Q-Workstation-Edition", "rtxpro6000-maxq-96gb"),
        ("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", "rtxpro6000-server-96gb"),
        ("RTX-Pro-6000", "rtxpro6000-96gb"),
        ("NVIDIA-RTX-6000-Ada-Generation", "rtx6000ada-48gb"),
        ("NVIDIA-RTX-A6000", "a6000-48gb"),
        ("NVIDIA-GeForce-RTX-5090", "rtx5090-32gb"),
        ("NVIDIA-GeForce-RTX-4090", "rtx4090-24gb"),
        ("NVIDIA-GeForce-RTX-4080", "rtx4080-16gb"),
        ("Tesla-V100-SXM2-32GB", "v100-32gb"),
        ("Tesla-V100-SXM2-16GB", "v100-16gb"),
        ("Tesla-T4", "t4-16gb"),
        ("h100-80gb", "h100-80gb"),
    ],
)
def test_a_product_label_finds_its_gpu(product: str, name: str) -> None:
    assert of_product(product) == GPUS[name]


@pytest.mark.parametrize("product", ["A100", "a100", "NVIDIA-A100", "NVIDIA-A100-SXM-64GB", "V100", "Tesla-V100"])
def test_a_product_that_does_not_say_which_of_its_sizes_is_not_guessed(product: str) -> None:
    assert of_product(product) is None
    chip = product.lower().split("-")[-1] if "64" not in product else "a100"
    assert {name.partition("-")[0] for name in closest(product)[:2]} == {chip}


def test_the_card_of_a_module_has_only_pcie_between_gpus() -> None:
    card, module = of_product("NVIDIA-A100-80GB-PCIe"), GPUS["a100-80gb"]
    assert card is not None
    small = of_product("NVIDIA-A100-PCIE-40GB")
    assert small is not None
    assert small.usable_bytes == GPUS["a100-40gb"].usable_bytes
    assert (card.usable_bytes, card.bf16_flops) == (module.usable_bytes, module.bf16_flops)
    assert card.link_bytes_per_second == module.host_link_bytes_per_second < module.link_bytes_per_second


# The fourth is the label of a vGPU, which has a share of the memory.
@pytest.mark.parametrize(
    "product",
    [
        "NVIDIA-GB200",
        "NVIDIA-L40",
        "NVIDIA-A100X",
        "NVIDIA-RTX-Pro-6000-Blackwell-DC-24Q",
        "NVIDIA-T400",
        "NVIDIA-GeForce-RTX-4080-Laptop-GPU",
        "NVIDIA-GeForce-RTX-4080-SUPER",
    ],
)
def test_a_product_that_is_not_in_the_table_is_not_guessed(product: str) -> None:
    assert of_product(product) is None


def test_a_nominal_memory_size_means_the_memory_that_the_driver_gives() -> None:
    resources = {"gpuProduct": "NVIDIA-H100-80GB-HBM3", "gpuMemory": "80Gi"}
    assert gpu_of(job(resources)) == GPUS["h100-80gb"]
    assert gpu_of(job({"gpuProduct": "NVIDIA-H100-80GB-HBM3"})) == GPUS["h100-80gb"]


def test_a_slice_of_a_product_has_the_declared_memory() -> None:
    gpu = gpu_of(job({"gpuProduct": "NVIDIA-A100-SXM4-80GB", "gpuMemory": "40Gi"}))
    assert gpu == GPUS["a100-80gb"].with_memory(40 * GIB)


def test_more_memory_than_the_product_has_is_reported() -> None:
    sliced = {"gpuProduct": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"}
    assert gpu_notes(job(sliced), GPUS["a100-80gb"]) == ()
    (note,) = gpu_notes(job({**sliced, "gpuMemory": "80Gi"}), GPUS["a100-80gb"])
    assert note.startswith("gpuMemory 80Gi is more than the 9.5 GiB of a NVIDIA-A100-SXM4-80GB-MIG-1g.10gb")
    assert gpu_notes(job({"gpuProduct": "NVIDIA-A100-SXM4-80GB", "gpuMemory": "80Gi"}), GPUS["a100-80gb"]) == ()


def test_memory_alone_takes_the_nearest_gpu_and_of_equals_the_slower() -> None:
    guess = replace(GPUS["a100-80gb"], guessed=True)
    assert gpu_of(job({"gpuMemory": "80Gi"})) == guess
    assert gpu_of(job({"gpuMemory": "64Gi"})) == guess.with_memory(64 * GIB)


def test_memory_alone_is_never_taken_for_a_gpu_without_bf16() -> None:
    gpu = gpu_of(job({"gpuMemory": "16Gi"}))
    assert gpu is not None
    assert gpu.bf16_flops > 0


def test_a_virtual_gpu_has_exactly_the_given_memory() -> None:
    gpu = gpu_of(job({"gpuMemory": "80Gi", "device": "virtual"}))
    assert gpu is not None
    assert gpu.usable_bytes == 80 * GIB


def test_a_gpu_that_the_object_does_not_name_is_unknown() -> None:
    assert gpu_of(job({})) is None
    assert gpu_of(job({"gpuProduct": "NVIDIA-GB200"})) is None


@pytest.mark.parametrize(
    ("product", "names"),
    [
        ("NVIDIA-GB200", ["b200-180gb", "b300-270gb", "h200-141gb"]),
        ("NVIDIA-A100-SXM4-8OGB", ["a100-80gb", "a100-40gb", "a10-24gb"]),
        ("NVIDIA-GeForce-RTX-5080", ["rtx5090-32gb", "rtx4080-16gb", "rtx4090-24gb"]),
        ("NVIDIA-L40", ["l40s-48gb", "l4-24gb"]),
        ("AMD-Instinct-MI300X", []),
        ("-", []),
    ],
)
def test_an_unknown_product_is_answered_with_similar_ones(product: str, names: list[str]) -> None:
    assert closest(product) == names


def test_an_unknown_product_is_reported_with_the_gpu_assumed_by_its_memory() -> None:
    unknown = job({"gpuProduct": "NVIDIA-L40", "gpuMemory": "48Gi"})
    gpu = gpu_of(unknown)
    assert gpu is not None
    assert gpu_notes(unknown, gpu) == (
        "gpuProduct NVIDIA-L40 is unknown (did you mean l40s-48gb or l4-24gb?); "
        "reckoned as a GPU of 47.4 GiB, speed as of the a6000-48gb",
    )
    known = job({"gpuProduct": "NVIDIA-L40S", "gpuMemory": "48Gi"})
    assert unknown_product(known) is None
    assert gpu_notes(known, GPUS["l40s-48gb"]) == ()


def test_a_product_unlike_any_is_answered_with_all_known_ones() -> None:
    assert (unknown_product(job({"gpuProduct": "MI300X"})) or "").startswith("MI300X is unknown (known are b300-270gb,")


def test_a_share_is_a_fraction_of_the_gpus_memory() -> None:
    for resources, usable_bytes in (
        ({"gpuMemory": "24Gi", "device": "virtual"}, 24 * GIB),
        ({"gpuProduct": "NVIDIA-A100-SXM4-80GB"}, GPUS["a100-80gb"].usable_bytes),
    ):
        gpu = gpu_of(job({**resources, "memoryShare": "25%"}))
        assert gpu is not None
        assert gpu.usable_bytes == usable_bytes // 4


@pytest.mark.parametrize(
    "resources",
    [
        {"gpuProduct": "NVIDIA-A100-SXM4-80GB-MIG-3g.40gb"},
        {"gpuProduct": "NVIDIA-A100-SXM4-80GB", "gpuResource": "nvidia.com/mig-3g.40gb"},
        {"gpuProduct": "NVIDIA-A100-SXM4-80GB-MIG-3g.40gb", "gpuResource": "nvidia.com/mig-3g.40gb"},
    ],
)
def test_a_mig_slice_has_its_part_of_memory_and_rates(resources: dict[str, Any]) -> None:
    gpu, whole = gpu_of(job(resources)), GPUS["a100-80gb"]
    assert gpu is not None
    assert gpu.usable_bytes == 38 * GIB
    assert gpu.bf16_flops == pytest.approx(whole.bf16_flops * 3 / 7)
    assert gpu.memory_bytes_per_second == pytest.approx(whole.memory_bytes_per_second * 38 / 79.2, rel=1e-6)


def test_a_mig_slice_of_an_rtx_pro_6000_has_quarters() -> None:
    whole = GPUS["rtxpro6000-server-96gb"]
    for slice_, gib, part in (("1g.24gb", 22.8, 0.25), ("2g.48gb", 45.6, 0.5), ("4g.96gb", 91.2, 1)):
        gpu = of_product(f"NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition-MIG-{slice_}")
        assert gpu is not None
        assert (gpu.usable_bytes, gpu.bf16_flops) == (int(gib * GIB), whole.bf16_flops * part)


def test_every_gpu_has_a_chip_whose_product_finds_it() -> None:
    for name in GPUS:
        found = of_product(chip_of(name).product.replace(" ", "-"))
        # "NVIDIA H100" is what the one of 96 GB calls itself, and most of 80 GB are meant by it.
        assert found == GPUS["h100-80gb" if name == "h100-96gb" else name]


def test_the_resource_name_gives_the_size_of_a_slice_unless_declared() -> None:
    alone = gpu_of(job({"gpuResource": "nvidia.com/mig-1g.10gb"}))
    declared = gpu_of(job({"gpuResource": "nvidia.com/mig-1g.10gb", "gpuMemory": "8Gi"}))
    assert alone is not None
    assert declared is not None
    assert alone.usable_bytes == 9.5 * GIB
    assert declared.usable_bytes == 8 * GIB
