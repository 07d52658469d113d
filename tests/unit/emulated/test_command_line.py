"""The emulated GPU's settings and the parsing of command lines, without a compiler or torch."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from memtune.gpus.gpu import GPUS, chip_of
from memtune_cli.views.emulate_page import _untried, page_of_command
from memtune_cli.views.screen import Screen
from memtune_runner.command.command import parse
from memtune_runner.emulated import installed_torch
from memtune_runner.emulated.errors import ArchitectureError, EmulationError
from memtune_runner.emulated.installed_torch import InstalledTorch
from memtune_runner.emulated.rank_count import RankPosition, named_gpus, of_command, of_node
from memtune_runner.emulated.rendezvous import LonelyStore
from memtune_runner.emulated.variables import gpu_variable


@pytest.mark.parametrize(
    ("words", "ranks"),
    [
        ("python train.py --nproc-per-node 8", 1),
        ("torchrun train.py", 1),
        ("torchrun --nproc-per-node 8 train.py", 8),
        ("torchrun --nproc_per_node=8 --nnodes=16 train.py", 128),
        ("python -m torch.distributed.run --nproc-per-node 4 train.py", 4),
        ("accelerate launch --num_processes 16 train.py", 16),
        ("deepspeed --num_gpus 8 --num_nodes 2 train.py", 16),
    ],
)
def test_a_launcher_says_how_many_ranks_there_are(words: str, ranks: int) -> None:
    assert of_command(parse(words.split()), words.split()) == ranks


@pytest.mark.parametrize(
    ("words", "ranks", "per_node"),
    [
        ("python train.py", 16, 8),
        ("python train.py", 2, 2),
        ("torchrun --nproc-per-node 4 --nnodes 4 train.py", 16, 4),
        ("torchrun --nproc-per-node gpu train.py", 16, 8),
        ("accelerate launch --num_processes 16 train.py", 16, 8),
    ],
)
def test_a_node_has_as_many_ranks_as_the_launcher_says(words: str, ranks: int, per_node: int) -> None:
    assert of_node(parse(words.split()), words.split(), ranks) == per_node


@pytest.mark.parametrize(("visible", "gpus"), [("", 0), ("-1", 0), ("3", 4), ("0, 5,1", 6), ("GPU-6d656d74", 0)])
def test_a_node_has_the_gpus_that_the_environment_names(visible: str, gpus: int) -> None:
    assert named_gpus(visible) == gpus


def test_a_rank_has_its_local_rank() -> None:
    told = RankPosition(11, 16, 8).variables()
    assert (told["RANK"], told["LOCAL_RANK"], told["GROUP_RANK"]) == ("11", "3", "1")
    assert (told["WORLD_SIZE"], told["LOCAL_WORLD_SIZE"]) == ("16", "8")


def test_the_page_of_a_command_has_memory_inside_and_outside_the_allocator() -> None:
    of_gpu = {"5": {"allocated": 10 << 30, "active": 11 << 30, "reserved": 12 << 30}}
    result = {
        "gpu": {"name": "h100-80gb", "product": "NVIDIA H100 80GB HBM3", "usableBytes": 80 << 30},
        "ranks": 8, "rank": 5, "gpus": 8, "outcome": "completed", "message": "", "exitCode": 0, "seconds": 5.0,
        "outsideBytes": {"context": 500 << 20, "nccl": 1 << 30},
        "torch": {"version": "2.13.0", "cuda": "13.0", "cudnn": "9.20.0", "nccl": "2.29.7"},
        "otherProcesses": [
            {"gpu": 5, "processes": 1, "peakBytes": 3 << 30, "togetherBytes": 14 << 30, "upperBytes": 15 << 30}
        ],
        "measured": {
            "peakBytes": {"allocated": 10 << 30, "active": 11 << 30, "reserved": 12 << 30},
            "peakBytesByGpu": of_gpu,
            "hostPeakBytes": 1 << 30, "pinnedPeakBytes": 0, "allocatorRetries": 0, "outOfMemoryErrors": 0,
            "values": [], "compilations": 0, "stubs": [],
            "matrixProducts": {"calls": 225, "flops": 773_094_113_280},
            "collectives": [{"name": "all-reduce", "calls": 3, "bytes": 6 << 30}],
        },
    }  # fmt: skip
    screen = Screen(100, colours=False, unicode=True)
    shown = "\n".join(page_of_command(screen, result))
    assert "emulated, rank 5 of 8\n" in shown
    assert re.search(r"reserved +12\.00 GiB\n", shown)
    parts = r"context 500 MiB \(give or take 40%\), nccl 1\.00 GiB \(give or take 60%\)"
    assert re.search(rf"outside +1\.49 GiB  not emulated, an estimate: {parts}\n", shown)
    assert "Asked of the GPU: 0.773 TFLOP of matrix products, all-reduce 6.00 GiB\n" in shown
    assert "GPU  allocated" not in shown
    assert "Processes that it started (1) took up to 3.00 GiB of GPU 5, with their contexts.\n" in shown
    assert "All together took 14.00 GiB at one time, and may take 15.00 GiB on a real GPU" in shown
    of_gpu["6"] = {"allocated": 5 << 20, "active": 6 << 20, "reserved": 8 << 20}
    shown = "\n".join(page_of_command(screen, {**result, "ranks": 1}))
    assert "emulated, 8 GPUs\n" in shown
    assert "took up to 3.00 GiB of GPU 5" in "\n".join(page_of_command(screen, {**result, "measured": None}))
    assert re.search(r"  GPU +allocated +active +reserved\n  5 +10.00 GiB .*\n  6 +5 MiB +6 MiB +8 MiB\n", shown)


def test_a_launcher_that_counts_gpus_by_itself_needs_a_number() -> None:
    words = ["torchrun", "--nproc-per-node", "gpu", "train.py"]
    with pytest.raises(EmulationError, match="give --ranks"):
        of_command(parse(words), words)


@pytest.mark.parametrize("name", GPUS)
def test_every_gpu_has_a_chip(name: str) -> None:
    chip = chip_of(name)
    assert chip.product
    assert chip.shared_bytes_per_block + chip.shared_bytes_reserved <= chip.shared_bytes_per_multiprocessor


def test_the_variable_has_the_versions_as_the_libraries_write_them() -> None:
    torch = InstalledTorch(("python",), Path("torch"), "2.13.0+cu130", "13.0", (9, 20, 0), (2, 29, 7))
    parts = dict(part.split("=") for part in gpu_variable(chip_of("a100-80gb"), 100, 10, 8, torch).split(";"))
    assert parts["name"] == "NVIDIA A100-SXM4-80GB"
    assert (parts["total"], parts["outside"]) == ("100", "10")
    assert (parts["cuda"], parts["cudnn"], parts["nccl"]) == ("13000", "92000", "22907")
    assert (parts["major"], parts["minor"], parts["sms"]) == ("8", "0", "108")


def test_more_gpus_than_torch_knows_are_one_sentence() -> None:
    torch = InstalledTorch(("python",), Path("torch"), "2.13.0+cu130", "13.0", (9, 20, 0), (2, 29, 7))
    with pytest.raises(EmulationError, match="torch knows no more than 120 GPUs of a node; share the 128 among nodes"):
        gpu_variable(chip_of("a100-80gb"), 100, 10, 128, torch)


def test_a_store_answers_for_ranks_that_are_not_there() -> None:
    store = LonelyStore(8)
    assert store.add("arrived", 1) == 8
    store.set("address/0", "here")
    assert store.get("address/5") == b"here"
    assert store.check(["address/0"])
    assert not store.check(["address/5"])
    assert store.compare_set("leader", "", "0") == b"0"
    assert store.compare_set("leader", "", "1") == b"0"
    # What the first rank would have set: NCCL asks for as many bytes.
    assert len(store.get("default_pg/0//cuda//0")) == 128


@pytest.mark.parametrize(("version", "is_tried"), [("2.13.0+cu130", True), ("2.6.0", True), ("2.15.0+cu130", False)])
def test_a_torch_that_was_never_tried_is_named(version: str, is_tried: bool) -> None:
    assert [version in line for line in _untried(version)] == ([] if is_tried else [True])


@pytest.mark.parametrize(("system", "machine"), [("Linux", "riscv64"), ("Darwin", "arm64")])
def test_another_machine_is_refused_with_one_sentence(
    monkeypatch: pytest.MonkeyPatch, system: str, machine: str
) -> None:
    monkeypatch.setattr(installed_torch, "_look", lambda _: {"system": system, "machine": machine})
    with pytest.raises(
        ArchitectureError,
        match=f"this machine is {system} on {machine}; the emulated GPU needs Linux on x86_64 or aarch64",
    ) as told:
        installed_torch.find(parse([sys.executable, "train.py"]))
    assert told.value.exit_code == 4
