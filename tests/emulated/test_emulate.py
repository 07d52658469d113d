"""`memtune emulate` with the CUDA build of torch: published peaks, exact books, values, and how commands end."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from emulated_gpu_requirements import PYTHON
from emulated_runs import emulate

from memtune.units import GIB, MIB

_SCRIPTS = Path(__file__).parent / "scripts"
_LLAMA = Path(__file__).parents[2] / "bench" / "emulated_llama.py"


# What scripts/rank.py says of the memory that it holds.
_HELD = ("ddp", "full", "hybrid", "fsdp2", "held")


def test_llama_on_8_gpus_reserves_torchtitans_published_memory() -> None:
    code, result = emulate(_LLAMA, "--gpu", "h100-96gb", "--ranks", "8", arguments=("2", "8192"), python=PYTHON)
    assert code == 0, result["printed"][-2000:]
    measured = result["measured"]
    # 82.4 GiB: benchmarks/llama3_h100_202412_torchtitan.md.
    assert measured["peakBytes"]["reserved"] == pytest.approx(82.4 * GIB, rel=0.005)
    assert measured["stubs"] == []
    assert measured["allocatorRetries"] == 0
    assert measured["hostPeakBytes"] < 2 * GIB


def test_a_gpu_that_is_too_small_is_reported_by_torchs_own_error() -> None:
    code, result = emulate(_LLAMA, "--gpu", "a100-40gb", "--ranks", "8", arguments=("2", "8192"))
    assert (code, result["outcome"]) == (6, "outOfMemory")
    assert "CUDA out of memory. Tried to allocate 448.00 MiB" in result["message"]
    assert "GPU 0 has a total capacity of 39.38 GiB" in result["message"]
    assert result["measured"]["outOfMemoryErrors"] == 1


def test_books_are_exact_and_survive_a_reset_of_the_peaks(tmp_path: Path) -> None:
    code, result = emulate(_SCRIPTS / "books.py", "--snapshot", str(tmp_path / "snapshot.pickle"))
    assert code == 0, result["printed"][-2000:]
    said = json.loads(result["printed"].splitlines()[-1])
    # Blocks are rounded to 512 bytes: 4,000,256 and 128 MiB; then 512, and 512 for the sum.
    assert result["measured"]["peakBytes"]["allocated"] == 4_000_256 + 128 * MIB
    # A segment of 20 MiB for the first, one of its own for the second, and 2 MiB for what is small.
    assert result["measured"]["peakBytes"]["reserved"] == 150 * MIB
    assert said["allocated"] == 128 * MIB + 512
    assert said["total"] - said["free"] == 150 * MIB + sum(result["outsideBytes"].values())
    assert said["sum"] == 3.0
    assert result["measured"]["pinnedPeakBytes"] >= MIB
    assert pickle.loads((tmp_path / "snapshot.pickle").read_bytes())["segments"]


def _compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[str]]:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # nothing is compiled yet
    code, result = emulate(_SCRIPTS / "compiled.py", python=PYTHON)  # torch's compiler is imported on the emulated GPU
    assert code == 0, result["printed"][-2000:]
    return result["measured"]["compilations"], result["printed"].splitlines()[-1].split()


def test_compiled_models_take_the_memory_of_compiled_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uncompiled, (peak_mib, *values) = _compiled(tmp_path, monkeypatch)
    assert uncompiled == 0
    assert int(peak_mib) < 400
    assert values == ["1.0", "True"]


def test_a_function_that_is_decorated_and_never_called_imports_no_compiler(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nimport torch\n\n@torch.compile\ndef never(x):\n    return x\n\n"
        "assert 'torch._inductor.compile_fx' not in sys.modules\n"
    )
    code, result = emulate(script, python=PYTHON)
    assert code == 0, result["printed"][-2000:]


def test_checkpointed_blocks_are_compiled_as_in_the_default_mode() -> None:
    code, result = emulate(_SCRIPTS / "compiled_blocks.py", arguments=("default", "reduce-overhead", "max-autotune"))
    assert code == 0, result["printed"][-2000:]
    lines = result["printed"].splitlines()[-3:]
    assert len(lines) == 3
    for line in lines:
        peak_mib, graphs = line.split()
        assert int(peak_mib) < 405  # 416 as it is written
        assert graphs == "1"


def test_no_setting_captures_graphs_or_times_kernels_and_the_caches_of_real_runs_stay_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CUDAGRAPHS", "MAX_AUTOTUNE", "COORDINATE_DESCENT_TUNING"):
        monkeypatch.setenv(f"TORCHINDUCTOR_{name}", "1")
    for name in ("TORCHINDUCTOR", "TRITON"):
        monkeypatch.setenv(f"{name}_CACHE_DIR", str(tmp_path / name))
    # torch reads these as its compiler is imported, which a fork has done already.
    code, result = emulate(_SCRIPTS / "compiled_blocks.py", arguments=("default",), python=PYTHON)
    assert code == 0, result["printed"][-2000:]
    assert result["measured"]["stubs"] == []
    assert "AUTOTUNE" not in result["printed"]  # torch prints the times of what it chose from
    assert list(tmp_path.iterdir()) == []


def test_the_backend_cudagraphs_runs_uncaptured_and_a_captured_graph_is_one_sentence(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\nmodel = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()).cuda()\n"
        "compiled = torch.compile(model, backend='cudagraphs')\nfor _ in range(3):\n"
        "    compiled(torch.ones(8, 64, device='cuda')).mean().backward()\nprint('compiled')\n"
        "with torch.cuda.graph(torch.cuda.CUDAGraph()):\n    torch.ones(8, device='cuda')\n"
    )
    code, result = emulate(script)
    assert "compiled\n" in result["printed"]
    assert (code, result["measured"]["stubs"]) == (1, [])
    assert "CUDA error: the emulated GPU captures no CUDA graph" in result["message"]


def test_outputs_of_triton_kernels_do_not_keep_old_values() -> None:
    code, result = emulate(_SCRIPTS / "kernels.py")
    assert code == 0, result["printed"][-2000:]


@pytest.mark.parametrize("ranks", [1, 8])
def test_ranks_that_a_script_starts_by_itself_are_one_that_stands_for_all(ranks: int) -> None:
    code, result = emulate(_SCRIPTS / "spawned.py", "--ranks", str(ranks))
    assert code == 0, result["printed"][-2000:]
    assert f"rank 0 of {ranks}\n" in result["printed"]
    # Weights and gradients of 64 MiB, and DDP's bucket.
    assert result["measured"]["peakBytes"]["allocated"] > 3 * 64 * MIB


def test_ranks_that_start_processes_starts_are_one_and_its_script_waits_for_them_by_itself() -> None:
    code, result = emulate(_SCRIPTS / "spawned.py", "--ranks", "8", arguments=("8", "start_processes"))
    assert code == 0, result["printed"][-2000:]
    assert "rank 0 of 8\nexit codes []\n" in result["printed"]
    assert result["measured"]["peakBytes"]["allocated"] > 3 * 64 * MIB


@pytest.mark.parametrize("ranks", [1, 8])
def test_a_function_that_torchruns_agent_starts_runs_once(ranks: int, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\nfrom torch.distributed.launcher.api import LaunchConfig, elastic_launch\n"
        "def train():\n    torch.distributed.init_process_group('nccl')\n"
        "    return torch.ones(torch.distributed.get_world_size(), device='cuda').numel()\n"
        f"if __name__ == '__main__':\n    config = LaunchConfig(1, 1, {ranks}, rdzv_endpoint='localhost:0')\n"
        "    print('returned', elastic_launch(config, train)())\n"
    )
    told = () if ranks == 1 else ("--ranks", str(ranks))
    code, result = emulate(script, *told, "--time-limit", "60")
    assert code == 0, result["printed"][-2000:]
    assert f"returned {{0: {ranks}}}\n" in result["printed"]


def test_the_script_goes_on_after_its_ranks_exit(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys, torch\nfrom torch import distributed, multiprocessing\n"
        "def train(rank, number):\n    os.environ.update(MASTER_ADDR='localhost', MASTER_PORT='29511')\n"
        "    distributed.init_process_group('nccl', rank=rank, world_size=8)\n    torch.ones(3, device='cuda')\n"
        "    print('ran', number)\n    sys.exit(0)\n"
        "if __name__ == '__main__':\n    for each in (1, 2):\n        multiprocessing.spawn(train, (each,), nprocs=8)\n"
        "    print('after')\n"
    )
    code, result = emulate(script, "--ranks", "8", "--time-limit", "60")
    assert code == 0, result["printed"][-2000:]
    assert "ran 1\nran 2\nafter\n" in result["printed"]


def test_a_process_that_answers_its_script_runs_beside_it(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\nfrom torch import multiprocessing\n"
        "def answer(rank, queue, stop, shared):\n    own = 2 * shared\n"
        "    queue.put((rank, own.numel()))\n    stop.wait()\n"
        "if __name__ == '__main__':\n    context = multiprocessing.get_context('spawn')\n"
        "    queue, stop, shared = context.Queue(), context.Event(), torch.ones(1 << 24, device='cuda')\n"
        "    helper = multiprocessing.start_processes(answer, (queue, stop, shared), 1, join=False)\n"
        "    print('answered', queue.get())\n    more = 3 * shared\n    stop.set()\n    helper.join()\n"
    )
    code, result = emulate(script, "--time-limit", "60")
    assert code == 0, result["printed"][-2000:]
    assert "answered (0, 16777216)\n" in result["printed"]
    assert "starts a process, whose memory is counted apart\n" in result["printed"]
    assert (result["measured"]["peakBytes"]["reserved"], result["measured"]["stubs"]) == (128 * MIB, [])
    # The helper has a tensor of its own and a context; what it is given is the script's.
    assert result["otherProcesses"] == [
        {"gpu": 0, "processes": 1, "peakBytes": 564 * MIB, "togetherBytes": 692 * MIB, "upperBytes": 692 * MIB}
    ]


@pytest.mark.parametrize("strategy", ["ddp", "ddp_spawn"])
def test_lightning_trains_on_the_gpus_of_all_ranks(strategy: str) -> None:
    code, result = emulate(_SCRIPTS / "lightning_ranks.py", "--ranks", "8", arguments=(strategy,))
    assert code == 0, result["printed"][-2000:]
    assert "of ranks 8\n" in result["printed"]
    assert result["measured"]["peakBytes"]["allocated"] > 3 * 64 * MIB


def test_undeclared_ranks_that_a_script_starts_are_reported() -> None:
    code, result = emulate(_SCRIPTS / "spawned.py", arguments=("2",))
    assert code == 1
    assert "give --ranks 2, and one stands for all" in result["printed"]


def test_ranks_that_are_processes_of_their_own_exchange_objects_and_small_tensors() -> None:
    code, result = emulate(_SCRIPTS / "exchange.py", "--gpus", "2", "--time-limit", "120")
    assert code == 0, result["printed"][-2000:]
    assert {"rank 0 was told all", "rank 1 was told all"} <= set(result["printed"].splitlines())
    # Each tells of the lines that read what nobody knows, and of no other.
    lines = (_SCRIPTS / "exchange.py").read_text().splitlines()
    places = ", ".join(
        f"{_SCRIPTS / 'exchange.py'}:{number}" for number, line in enumerate(lines, 1) if ".item(), flush" in line
    )
    expected = f"a process that the script started read 2 values that no kernel has computed ({places})"
    assert result["printed"].count(expected) == 2


def test_data_from_other_ranks_is_unknown_and_reported(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\nfrom torch import distributed\ndistributed.init_process_group('cpu:gloo,cuda:nccl')\n"
        "count = torch.tensor([3], device='cuda')\nalone = distributed.new_group([0])\n"
        "distributed.all_reduce(count, group=alone)\nassert count.item() == 3  # of one rank\n"
        "distributed.all_reduce(count)\nassert count.item() == 24  # of all\n"
        "sizes = [torch.empty(1, device='cuda') for _ in range(8)]\n"
        "distributed.gather(torch.full((1,), 5.0, device='cuda'), sizes)\nassert sizes[7].item() == 5  # of the last\n"
        "large = torch.ones(1 << 21, device='cuda')\ndistributed.all_reduce(large)\nlarge[0].item()  # of a large one\n"
        "distributed.barrier()\ndistributed.all_reduce(torch.tensor([3]))  # on the host\n"
    )
    code, result = emulate(script, "--ranks", "8")
    assert code == 0, result["printed"][-2000:]
    lines = script.read_text().splitlines()
    read = {lines[each["line"] - 1].partition("# ")[2]: each["value"] for each in result["measured"]["values"]}
    assert read == {
        "of one rank": "true",
        **dict.fromkeys(("of all", "of the last", "of a large one", "on the host"), "made up"),
    }


def test_without_a_compiler_nothing_is_compiled_and_the_result_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    emulate(_SCRIPTS / "books.py")  # builds the library
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    uncompiled, (peak_mib, *_) = _compiled(tmp_path, monkeypatch)
    assert uncompiled == 1
    assert int(peak_mib) > 440  # the norm's input and the activation's are kept, too


def test_a_reset_of_the_peaks_hides_none() -> None:
    code, result = emulate(_SCRIPTS / "books.py", arguments=("accelerator",))
    assert code == 0, result["printed"][-2000:]
    assert result["measured"]["peakBytes"]["allocated"] == 4_000_256 + 128 * MIB


def test_expandable_segments_take_only_the_needed_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    code, result = emulate(_SCRIPTS / "books.py")
    assert code == 0, result["printed"][-2000:]
    # 4,000,256 bytes and 128 MiB side by side, in pieces of 20 MiB; 2 MiB for what is small.
    assert result["measured"]["peakBytes"]["reserved"] == 142 * MIB


def test_a_share_of_the_memory_and_the_largest_split_are_the_allocators_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\nmib = 1 << 20\nlarge = torch.empty(100 * mib, dtype=torch.uint8, device='cuda')\ndel large\n"
        "small = torch.empty(30 * mib, dtype=torch.uint8, device='cuda')\n"
        "torch.cuda.set_per_process_memory_fraction(0.25)\ntry:\n"
        "    torch.empty(20 << 30, dtype=torch.uint8, device='cuda')\n"
        "except torch.OutOfMemoryError as error:\n    print(error)\n"
    )
    for settings, reserved in ("max_split_size_mb:21", 130), ("max_split_size_mb:200", 100):
        monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", settings)
        code, result = emulate(script)
        assert code == 0, result["printed"][-2000:]
        assert "19.78 GiB allowed" in result["printed"]
        assert result["measured"]["peakBytes"]["reserved"] == reserved * MIB


def test_a_slice_of_a_gpu_has_its_part_of_the_memory(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import torch\ntorch.empty(5 << 30, dtype=torch.uint8, device='cuda')\n")
    code, result = emulate(script, "--gpu", "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb")
    assert (code, result["outcome"], result["gpu"]["usableBytes"]) == (6, "outOfMemory", 19 << 28)
    assert "Tried to allocate 5.00 GiB. GPU 0 has a total capacity of 4.75 GiB" in result["message"]


def test_values_steer_a_script_as_on_a_gpu() -> None:
    code, result = emulate(_SCRIPTS / "values.py")
    assert code == 0, result["printed"][-2000:]
    lines = (_SCRIPTS / "values.py").read_text().splitlines()
    reads = {lines[each["line"] - 1]: each["value"] for each in result["measured"]["values"]}
    assert reads["assert numbers.tolist() == list(range(10))"] == "true"
    assert reads["assert loss.item() == 1.0  # a value that no kernel has computed"] == "made up"
    assert reads["        read.append(gradient.norm().item())"] == "made up"


def test_large_host_tensors_are_not_copied_and_read_as_made_up(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import torch\nprint('read', torch.zeros(1 << 21).cuda().sum().item())\n")
    code, result = emulate(script)
    assert code == 0, result["printed"][-2000:]
    assert [each["value"] for each in result["measured"]["values"]] == ["made up"]


def test_operators_that_run_again_give_what_the_cpu_computes() -> None:
    code, result = emulate(_SCRIPTS / "repeated.py")
    assert code == 0, result["printed"][-2000:]
    assert {each["value"] for each in result["measured"]["values"]} == {"true"}


def test_copies_of_storages_and_saves_leave_numbers_as_they_are() -> None:
    code, result = emulate(_SCRIPTS / "storages.py")
    assert code == 0, result["printed"][-2000:]
    lines = (_SCRIPTS / "storages.py").read_text().splitlines()
    read = {lines[each["line"] - 1].partition("  # ")[2]: each["value"] for each in result["measured"]["values"]}
    true = ("after a save", "of a large copy", "of what was copied", "of true bytes")
    made_up = ("of a small copy", "of what was never computed", "of a part", "of bytes", "of many bytes")
    assert {name: value for name, value in read.items() if name} == {
        **dict.fromkeys(true, "true"),
        **dict.fromkeys(made_up, "made up"),
    }


def test_convolutions_of_uncomputed_tensors_are_not_computed(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\nconvolution = torch.nn.Conv2d(256, 256, 3, padding=1, device='cuda').half()\n"
        "image = torch.randn(1, 256, 64, 64, device='cuda').half()\n"
        "print('read', convolution(image)[0, 0, 0, 0].item())\n"
    )
    code, result = emulate(script)
    assert code == 0, result["printed"][-2000:]
    assert "read 1.0\n" in result["printed"]  # a CPU takes seconds for each in half precision
    assert result["measured"]["values"][0]["value"] == "made up"


def test_rows_chosen_by_integers_take_no_size_from_values() -> None:
    code, result = emulate(_SCRIPTS / "lookups.py")
    assert code == 0, result["printed"][-2000:]
    lines = (_SCRIPTS / "lookups.py").read_text().splitlines()
    assert not any(each["sizes"] for each in result["measured"]["values"])
    for each in result["measured"]["values"]:
        assert lines[each["line"] - 1].endswith(f"# {each['value']}"), each


def test_a_backward_pass_finds_the_places_of_a_mask_and_is_followed_to_the_host() -> None:
    code, result = emulate(_SCRIPTS / "masks.py")
    assert code == 0, result["printed"][-2000:]
    assert "read 1.0 1.0\npeak 16\n" in result["printed"]
    lines = (_SCRIPTS / "masks.py").read_text().splitlines()
    told = {lines[each["line"] - 1].strip() for each in result["measured"]["values"]}
    assert 'found.append(float(gradients[0].to("cpu")[0, 0]))' in told


def test_a_backward_pass_calls_the_methods_of_a_subclass_by_their_own_names() -> None:
    code, result = emulate(_SCRIPTS / "subclasses.py")
    assert code == 0, result["printed"][-2000:]


def test_large_tensors_of_one_value_take_no_host_memory() -> None:
    code, result = emulate(_SCRIPTS / "large.py")
    assert code == 0, result["printed"][-2000:]
    assert {each["value"] for each in result["measured"]["values"]} == {"true"}
    assert result["measured"]["hostPeakBytes"] < GIB


def test_large_random_weights_of_the_host_are_counted_and_not_drawn(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import resource\nimport torch\nlayer = torch.nn.Linear(1 << 14, 1 << 15)\n"
        "half = layer.to(torch.bfloat16)\nassert half.weight.dtype is torch.bfloat16\nhalf.cuda()\n"
        "assert float(torch.nn.Linear(512, 512).weight.std()) > 0\n"
        "print('rss', resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10)\n"
    )
    code, result = emulate(script)
    assert code == 0, result["printed"][-2000:]
    resident = next(int(line.split()[1]) for line in result["printed"].splitlines() if line.startswith("rss"))
    assert resident < GIB
    # 2 GiB in single precision beside 1 GiB in half, beside the libraries.
    assert 3 * GIB < result["measured"]["hostPeakBytes"] < 3 * GIB + resident


def test_values_are_followed_in_processes_that_a_script_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("own = 'own'\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    code, result = emulate(_SCRIPTS / "children.py")
    assert code == 0, result["printed"][-2000:]
    expected = "memtune: emulated GPU: a process that the script started read 3 values that no kernel has computed"
    said = [line for line in result["printed"].splitlines() if not line.startswith(expected)]
    assert said[-3:] == ["own 2016 63 True"] * 2 + ["192"]
    # One after the other; the script's own process never used the GPU.
    assert [(each["gpu"], each["processes"]) for each in result["otherProcesses"]] == [(0, 3)]
    assert {result["otherProcesses"][0][name] for name in ("togetherBytes", "upperBytes")} == {2 * MIB}
    assert result["otherProcesses"][0]["peakBytes"] == 502 * MIB  # with a context
    assert result["printed"].count(expected) == 2


def test_a_process_may_end_right_after_a_backward_pass() -> None:
    """Without waiting for autograd's threads, 21 of 30 such processes ended by SIGABRT."""
    code, result = emulate(_SCRIPTS / "last_backward_pass.py")
    assert code == 0, result["printed"][-2000:]


def test_a_forked_process_reports_its_reads_and_its_parent_its_memory(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\nfrom multiprocessing import get_context\n"
        "torch.randn(3).norm().item()\n"
        "def evaluate():\n    torch.randn(1 << 24, device='cuda').norm().item()  # by the fork\n"
        "if __name__ == '__main__':\n    fork = get_context('fork').Process(target=evaluate)\n"
        "    fork.start()\n    fork.join()\n    torch.randn(1 << 23, device='cuda').norm().item()\n"
    )
    code, result = emulate(script)
    assert code == 0, result["printed"][-2000:]
    line = 1 + next(place for place, text in enumerate(script.read_text().splitlines()) if "# by the fork" in text)
    expected = f"a process that the script started read 1 value that no kernel has computed ({script}:{line})"
    assert result["printed"].count(expected) == 1
    # It ended before its parent used the GPU, and had a context then.
    assert result["otherProcesses"] == [
        {"gpu": 0, "processes": 1, "peakBytes": 566 * MIB, "togetherBytes": 66 * MIB, "upperBytes": 600 * MIB}
    ]


def test_batch_norm_of_cudnn_takes_its_output_and_two_statistics() -> None:
    code, result = emulate(_SCRIPTS / "norms.py")
    assert code == 0, result["printed"][-2000:]
    assert int(result["printed"].splitlines()[-1]) == 4 * 8 * 32 * 64 * 64 + 2 * 512
    assert result["measured"]["stubs"] == []


def test_norms_of_rows_keep_their_input_as_it_is() -> None:
    code, result = emulate(_SCRIPTS / "layer_norms.py")
    assert code == 0, result["printed"][-2000:]
    kept = dict(zip(("rms", "rms autocast", "layer", "layer autocast"), _last_words(result["printed"]), strict=True))
    # Beside the input an output of 2 bytes and the statistics; autocast adds a copy of the input in fp32, and the
    # output is in fp32, too.
    elements, rows = 4096 * 1024, 4096
    assert kept == {
        "rms": 2 * elements + 4 * rows,
        "rms autocast": (4 + 4) * elements + 4 * rows,
        "layer": 2 * elements + 2 * 4 * rows,
        "layer autocast": (4 + 4) * elements + 2 * 4 * rows,
    }


def _last_words(printed: str) -> list[int]:
    return [int(line.split()[-1]) for line in printed.splitlines() if line.startswith(("RMSNorm", "LayerNorm"))]


def test_a_synchronized_batch_norm_takes_no_size_from_values(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\nimport torch.distributed as dist\ndist.init_process_group('nccl')\n"
        "norm = torch.nn.SyncBatchNorm(8).cuda()\n"
        "for _ in range(2):\n    norm(torch.randn(4, 8, 16, 16, device='cuda')).sum().backward()\n"
    )
    code, result = emulate(script, "--ranks", "4")
    assert code == 0, result["printed"][-2000:]
    assert result["measured"]["values"] == []


def test_calls_to_nvidias_other_libraries_are_named_and_take_memory() -> None:
    code, result = emulate(_SCRIPTS / "functions.py")
    assert code == 0, result["printed"][-2000:]
    steps, rows, width, hidden, layers = 32, 8, 64, 128, 2
    # The input, the output, both states at first and last, and of each layer its four gates, its cell and its output.
    kept = 4 * rows * (steps * (width + hidden + 6 * layers * hidden) + 4 * layers * hidden)
    assert f"kept {kept}" in result["printed"].splitlines()
    named = {each["name"] for each in result["measured"]["stubs"]}
    assert {"cudnnRNNForward", "cudnnCTCLoss", "cufftXtExec", "cusparseSpMM", "cusolverDnSgesvdj"} <= named
    assert not any(name.lower().endswith("size") for name in named)


@pytest.mark.parametrize("stage", ["1", "2", "3"])
def test_deepspeed_runs_as_rank_0_of_8(stage: str) -> None:
    # In the new one, DeepSpeed finds the GPU by itself.
    python = PYTHON if stage == "3" else None
    code, result = emulate(_SCRIPTS / "training.py", "--ranks", "8", arguments=(stage,), python=python)
    assert code == 0, result["printed"][-2000:]
    assert result["measured"]["peakBytes"]["reserved"] > 0
    assert result["measured"]["stubs"] == []


@pytest.mark.parametrize("stages", [(), ("3",)], ids=["ddp and fsdp", "deepspeed"])
def test_another_rank_holds_as_much_as_rank_0(stages: tuple[str, ...]) -> None:
    held = []
    for rank, device in (0, 0), (11, 3):
        own = ("--ranks", "16", "--rank", str(rank))
        code, result = emulate(_SCRIPTS / "rank.py", *own, arguments=stages)
        assert code == 0, result["printed"][-2000:]
        assert (result["rank"], result["measured"]["stubs"]) == (rank, [])
        assert [*result["measured"]["peakBytesByGpu"]] == [str(device)]
        assert f"rank {rank} on cuda:{device} of 8\n" in result["printed"]
        held.append([line.split() for line in result["printed"].splitlines() if line.startswith(_HELD)])
    assert held[0] == held[1] != []
    if not stages:
        mib = {name: int(size) for name, size in held[0]}
        # Of 64 MiB of weights and twice as much of moments, FSDP has a sixteenth, or an eighth among the 8 of a node.
        assert 3 * 4 <= mib["hybrid"] - mib["full"] < 3 * 8
        assert mib["ddp"] >= 3 * 64


def test_one_process_has_the_memory_of_each_gpu_that_it_uses() -> None:
    code, result = emulate(_SCRIPTS / "several_gpus.py", "--gpus", "4")
    assert code == 0, result["printed"][-2000:]
    said = result["printed"].splitlines()
    # Weights and gradients of 16 MiB for each layer. Copies of DataParallel's model are gone when their gradients come,
    # which are as large, and are added to those of the first GPU one after the other.
    for line in (
        "held 0 64 0 32",
        "full GPU 2 has a total capacity of 79.10 GiB",
        "after 0 64 0 32",
        "halves 32 32 0 0",
        "replicas 48 16 16 16",
        "dispatched 64 0 64 0",
    ):
        assert line in said
    by_gpu = result["measured"]["peakBytesByGpu"]
    assert {gpu: peaks["allocated"] // MIB for gpu, peaks in by_gpu.items()} == {"0": 64, "1": 64, "2": 64, "3": 32}
    for metric, peak in result["measured"]["peakBytes"].items():
        assert peak == max(peaks[metric] for peaks in by_gpu.values())
    assert (result["gpus"], result["ranks"], result["measured"]["outOfMemoryErrors"]) == (4, 1, 1)
    assert result["measured"]["stubs"] == []
    assert {each["value"] for each in result["measured"]["values"] if each["file"].endswith("several_gpus.py")} == {
        "true"
    }


@pytest.mark.parametrize(("visible", "seen"), [("3,1", ["1", "4"]), ("0", ["0", "4"]), ("", []), ("-1", [])])
def test_a_script_that_names_its_gpus_sees_no_others(visible: str, seen: list[str], tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        f"import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '{visible}'\nimport torch\n"
        "gpus = torch.cuda.device_count()\nprint('available', torch.cuda.is_available(), gpus)\nif gpus:\n"
        "    torch.ones(1 << 20, device=f'cuda:{gpus - 1}')\n"
    )
    code, result = emulate(script, "--gpus", "4")
    assert code == 0, result["printed"][-2000:]
    numbers = [each for each in visible.split(",") if each.isdecimal()]
    assert f"available {bool(numbers)} {len(numbers)}\n" in result["printed"]
    by_gpu = (result["measured"] or {"peakBytesByGpu": {}})["peakBytesByGpu"]
    assert [word for gpu, peaks in by_gpu.items() for word in (gpu, str(peaks["allocated"] // MIB))] == seen


def test_groups_over_gloo_wait_for_nobody() -> None:
    code, result = emulate(_SCRIPTS / "groups.py", "--ranks", "8", "--time-limit", "60")
    assert code == 0, result["printed"][-2000:]


def test_a_rank_is_one_of_tensor_context_and_pipeline_parallel_ones() -> None:
    code, result = emulate(_SCRIPTS / "parallelism.py", "--ranks", "4")
    assert code == 0, result["printed"][-2000:]
    assert result["measured"]["stubs"] == []
    assert "the script waits for an object of another rank" in result["printed"]


def test_the_last_pipeline_stage_runs_if_the_script_declares_its_input() -> None:
    code, result = emulate(_SCRIPTS / "stages.py", "--ranks", "4", "--rank", "3")
    assert code == 0, result["printed"][-2000:]
    assert "stage 3 of the pipeline would be told by the stage before" in result["printed"]
    assert "pass input_args to PipelineStage" in result["printed"]


def test_transformers_trainer_trains_evaluates_and_saves_on_one_gpu_and_its_model_generates() -> None:
    code, result = emulate(_SCRIPTS / "training.py")
    assert code == 0, result["printed"][-2000:]
    assert {"saved [4]", "generated (1, 13)"} <= set(result["printed"].splitlines())  # 4 bytes for each weight
    # Weights, gradients and two moments of 4 bytes at least.
    assert result["measured"]["peakBytes"]["allocated"] > 4 * 4 * 18e6


def test_a_program_that_a_package_installs_is_a_script_of_its_python(tmp_path: Path) -> None:
    program = tmp_path / "train-something"
    program.write_text(f"#!{PYTHON}\nimport torch\ntorch.zeros(64, 1024, 1024, device='cuda')\n")
    program.chmod(0o755)
    words = ["emulate", "--gpu", "h100-80gb", "--format", "json", "--", str(program)]
    done = subprocess.run(
        [sys.executable, "-m", "memtune_cli.main", *words], check=True, capture_output=True, text=True
    )
    assert json.loads(done.stdout)["measured"]["peakBytes"]["allocated"] == 256 * MIB


def test_each_ending_has_its_own_code(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import torch\ntorch.ones(3, device='cuda')\nraise SystemExit(3)\n")
    code, result = emulate(script, python=PYTHON)
    assert (code, result["outcome"], result["exitCode"]) == (1, "failed", 3)
    script.write_text("import time, torch\nkept = torch.ones(3, device='cuda')\ntime.sleep(1000)\n")
    code, result = emulate(script, "--time-limit", "15", python=PYTHON)
    assert (code, result["outcome"]) == (7, "timeLimit")
    assert result["measured"]["peakBytes"]["allocated"] == 512


def test_an_unsupported_feature_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refused(*words: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "memtune_cli.main", "emulate", *words]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        assert len(done.stderr.splitlines()) == 1
        return done.returncode, done.stderr

    code, sentence = refused("--gpu", "h900", "--", str(PYTHON), "train.py")
    assert code == 5
    assert "'h900' is unknown; use one of" in sentence
    code, sentence = refused("--", sys.executable, "train.py")
    assert code == 3
    assert "was not built for CUDA" in sentence
    code, sentence = refused("--ranks", "8", "--rank", "8", "--", str(PYTHON), "train.py")
    assert code == 2
    assert "the last of 8 ranks is 7" in sentence
    code, sentence = refused("--ranks", "8", "--gpus", "4", "--", str(PYTHON), "train.py")
    assert code == 2
    assert "a node of 8 ranks has 8 to 120 GPUs" in sentence
    code, sentence = refused("--", "./train.sh")
    assert code == 2
    assert "neither Python nor a launcher" in sentence
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CC", "no-such-compiler")
    code, sentence = refused("--", str(PYTHON), "train.py")
    assert code == 3
    assert "no C compiler" in sentence


def test_matrix_products_and_collectives_are_counted(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\nfrom torch import distributed, nn\ndistributed.init_process_group('nccl')\n"
        "layers = nn.Embedding(100, 64), nn.Linear(64, 128), nn.Linear(128, 100, bias=False)\n"
        "model = nn.Sequential(*layers).cuda().bfloat16()\n"
        "model(torch.ones(256, dtype=torch.int64, device='cuda')).sum().backward()\n"
        "distributed.all_reduce(torch.ones(1000, device='cuda'))\n"
    )
    code, result = emulate(script, "--ranks", "8")
    assert code == 0, result["printed"][-2000:]
    # Six operations for each weight and token.
    assert result["measured"]["matrixProducts"] == {"calls": 6, "flops": 6 * (64 * 128 + 128 * 100) * 256}
    assert result["measured"]["collectives"] == [{"name": "all-reduce", "calls": 1, "bytes": 4000}]


def test_a_step_has_its_products_attention_collectives_and_update(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\nfrom torch import distributed, nn\n"
        "from torch.nn.functional import scaled_dot_product_attention\n"
        "from memtune_runner.emulated.step_operations import StepTrace\n"
        "distributed.init_process_group('nccl')\n"
        "model = nn.Linear(256, 512, bias=False).cuda().bfloat16()\n"
        "optimizer = torch.optim.AdamW(model.parameters(), fused=True)\n"
        "heads = torch.zeros(2, 8, 512, 64, device='cuda', dtype=torch.bfloat16, requires_grad=True)\n"
        "trace = StepTrace()\n"
        "loss = model(torch.ones(1024, 256, device='cuda', dtype=torch.bfloat16)).sum()\n"
        "(loss + scaled_dot_product_attention(heads, heads, heads, is_causal=True).sum()).backward()\n"
        "trace.micro_batch_began()\n"
        "distributed.all_gather_into_tensor(torch.ones(8000, device='cuda'), torch.ones(1000, device='cuda'))\n"
        "distributed.all_reduce(torch.ones(1000, device='cuda'))\n"
        "optimizer.step()\n"
        "micro, update = trace.stop()\n"
        "for each, times in sorted((micro + update).items()):\n"
        "    if each.kind != 'kernel': print('asked', times, *each[:-1])\n"
        "print('updated', sorted({each.kind for each in update}), max(each.moved for each in update))\n"
    )
    code, result = emulate(script, "--ranks", "8")
    assert code == 0, result["printed"][-2000:]
    asked = [line for line in result["printed"].splitlines() if line.startswith(("asked", "updated"))]
    matrices, flops = 2 * (1024 * 256 + 256 * 512 + 1024 * 512), 2 * 1024 * 256 * 512
    attention, scores = ("asked 1 cudnn-attention bf16", 2 * 8 * 512 * 512 * 64)
    assert [line for line in asked if "attention" not in line] == [
        "asked 1 all-gather  0 28000 0 0 8",
        "asked 1 all-reduce  0 7000 0 0 8",
        f"asked 1 product bf16 {flops} {matrices} 512 256 1",
        f"asked 1 product bf16 {flops} {matrices} 1024 512 1",
        # Weights, gradients and two states in 16 bits are read and written, and the number of the step is read.
        f"updated ['all-gather', 'all-reduce', 'kernel'] {8 * 2 * 256 * 512 + 4}",
    ]
    # Half of two products forward and of five backward.
    assert [line.rpartition(" 0 0 1")[0].rpartition(" ")[0] for line in asked if "attention" in line] == [
        f"{attention} {2 * scores}",
        f"{attention} {5 * scores}",
    ]


def test_groups_of_a_process_group_that_is_bound_to_its_device_have_their_own_ranks(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\nfrom torch import distributed\nfrom torch.distributed.device_mesh import init_device_mesh\n"
        "distributed.init_process_group(device_id=torch.device('cuda', 0))\n"
        "half = init_device_mesh('cuda', (2, 4), mesh_dim_names=('outer', 'inner'))['inner'].get_group()\n"
        "for group in (half, distributed.new_group([0, 1, 2, 3])):\n"
        "    whole, own = torch.zeros(512, device='cuda'), torch.ones(128, device='cuda')\n"
        "    distributed.all_gather_into_tensor(whole, own, group)\n"
    )
    code, result = emulate(script, "--ranks", "8")
    assert code == 0, result["printed"][-2000:]
    assert result["measured"]["collectives"] == [{"name": "all-gather", "calls": 2, "bytes": 2 * 2048}]
