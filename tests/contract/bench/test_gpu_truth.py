"""The GPU benchmark on a machine without a GPU: its refusal, its page, and one rank on a virtual GPU."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import fake_ranks
import gpu_driver
import gpu_emulated
import gpu_measure
import gpu_truth
import pytest
import torch
from gpu_measure import RAN_OUT, Measured, measure, print_measured
from gpu_pairs import MODELS, PAIRS, Pair, in_turns
from gpu_results import FIXTURES_FILE, PAIRS_FILE, Results
from gpu_score import Result
from gpu_snapshot import KEPT, read, recorded, replayed
from gpu_table import Machine
from gpu_trace import traced_model
from small_traces import small_trace
from torch import distributed

from dev.gpu_day import collect
from memtune.memory.replay import Replayer
from memtune.memory.traced_model import TracedModel
from memtune.model.plain import from_facts
from memtune.plans.plan import Plan
from memtune.units import GIB, MIB
from memtune_runner.device.statistics import VirtualStatistics
from memtune_runner.engine import PlanError
from memtune_runner.engine.decoder import Decoder
from memtune_runner.virtual.gpu import VirtualGpu

GUARD = Path(__file__).parents[2] / "support" / "gpus" / "cuda_requirements.py"
MACHINE = Machine("NVIDIA A100-SXM4-80GB", int(79.2 * GIB), "550.54", "12.8", "2.9.0", "0.18.0", "3.12.3")
TINY = from_facts({"hiddenSize": 32, "layers": 2, "heads": 2, "ffnSize": 64, "vocabSize": 256})


# With a norm whose CPU kernels keep the same tensors as a GPU's.
SMALL = from_facts(
    {
        "hiddenSize": 128,
        "layers": 4,
        "heads": 4,
        "ffnSize": 344,
        "vocabSize": 2048,
        "gatedFfn": True,
        "norm": "layernorm",
    }
)


@pytest.fixture(scope="module")
def small() -> TracedModel:
    return traced_model("small", SMALL, 128, ["full", "autocast", "half"])


@pytest.fixture(scope="module")
def one_of_two() -> None:
    """One world for all tests, ended with the module: DeepSpeed keeps its first."""
    fake_ranks.join(2)


def test_without_a_gpu_it_ends_with_two_and_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_truth, "no_gpu", lambda: "there is none")
    assert gpu_truth.main([]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == "gpu_truth: it measures on a CUDA GPU, and there is none; run it where a GPU is\n"


def test_the_page_has_every_pair_with_its_peak_or_its_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_truth, "no_gpu", lambda: None)
    monkeypatch.setattr(gpu_truth, "this_machine", lambda: MACHINE)

    def measured(pair: Pair, _: Path | None, _limit_seconds: float) -> Result:
        return Result(pair, problem="no fp8 here") if "fp8" in pair.plan else Result(pair, GIB, GIB, GIB, 1.0)

    traces = dict.fromkeys(MODELS, TracedModel("small", small_trace()))
    assert gpu_truth.main([], measured, lambda _: traces) == 0
    page = capsys.readouterr().out.splitlines()
    assert sum(line.startswith(tuple(f"| {pair.model} | {pair.plan} |" for pair in PAIRS)) for line in page) == 39
    assert page[-1] == "- 0.5B, fp8-ddp-none-mb4x1: no fp8 here"
    assert any(line.startswith("by trace: n=39 ") for line in page)


def test_a_call_continues_earlier_measurements_and_shows_them_without_a_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(gpu_truth, "this_machine", lambda: MACHINE)
    traces = dict.fromkeys(MODELS, TracedModel("small", small_trace()))
    words = ["--folder", str(tmp_path / "day")]
    asked: list[Pair] = []

    def measured(pair: Pair, _: Path | None, _limit_seconds: float) -> Result:
        asked.append(pair)
        return Result(pair, GIB, GIB, GIB, 1.0)

    def call(missing: str | None, *more: str) -> str:
        monkeypatch.setattr(gpu_truth, "no_gpu", lambda: missing)
        assert gpu_truth.main([*words, *more], measured, lambda _: traces) == 0
        return capsys.readouterr().out

    assert call(None, "--seconds", "-1").count("there was no time for it yet") == len(PAIRS)
    assert asked == []
    assert call(None, "--most", "3").count("there was no time for it yet") == len(PAIRS) - 3
    assert asked == in_turns(PAIRS)[:3]
    page = call(None)
    assert asked == in_turns(PAIRS), "it does not begin its turns anew"
    assert call(None).splitlines()[2:] == call("there is none").splitlines()[2:] == page.splitlines()[2:]
    assert len(asked) == len(PAIRS), "what was measured is not measured again"


def test_a_pair_that_failed_is_measured_again_after_those_that_are_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gpu_truth, "this_machine", lambda: MACHINE)
    monkeypatch.setattr(gpu_truth, "no_gpu", lambda: None)
    asked: list[Pair] = []

    def measured(pair: Pair, _: Path | None, _limit_seconds: float) -> Result:
        asked.append(pair)
        return Result(pair, GIB) if asked.count(pair) > 1 else Result(pair, problem="no module named deepspeed")

    words = ["--folder", str(tmp_path), "--measure-only", "--most"]
    for most in ("1", str(len(PAIRS))):
        assert gpu_truth.main([*words, most], measured) == 1
    assert asked == [*in_turns(PAIRS), PAIRS[0]]
    again = Results(tmp_path).of_pairs
    assert [each.problem for each in (again[PAIRS[0]], again[PAIRS[1]])] == ["", "no module named deepspeed"]


def test_a_pair_gets_no_more_time_than_is_left_and_is_missing_where_that_was_too_little(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    limits: list[float] = []

    def measured(pair: Pair, _: Path | None, limit_seconds: float) -> Result:
        limits.append(limit_seconds)
        took = 55.0 if len(limits) < 3 else 1000.0
        now[0] += min(took, limit_seconds)
        return Result(pair, GIB, GIB, GIB, 1.0) if took <= limit_seconds else Result(pair, problem="it did not end")

    found = Results(tmp_path)
    assert gpu_truth.measure_all(found, PAIRS, 150.0, False, measured) == (2, 0)
    assert limits == [60.0, 60.0, 40.0]
    assert list(found.of_pairs) == list(PAIRS[:2]), "the third may have been quick enough, had it begun earlier"
    assert list(Results(tmp_path).of_pairs) == list(PAIRS[:2])


def test_the_page_has_the_emulated_peaks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    kept = Results(tmp_path / "emulated")
    kept.begin(MACHINE)
    kept.add(Result(PAIRS[0], GIB, GIB, 3 * GIB, 1.0))
    monkeypatch.setattr(gpu_truth, "this_machine", lambda: MACHINE)
    monkeypatch.setattr(gpu_truth, "no_gpu", lambda: None)
    traces = dict.fromkeys(MODELS, TracedModel("small", small_trace()))
    words = ["--emulated", str(tmp_path / "emulated"), "--most", "1"]
    assert gpu_truth.main(words, lambda pair, *_: Result(pair, GIB, GIB, 2 * GIB, 1.0), lambda _: traces) == 0
    (row,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith(f"| {PAIRS[0].model} |"))
    assert " | 2.00 | 3.00 | +50.0% | " in row


def test_a_pair_whose_weights_the_host_cannot_hold_is_not_emulated() -> None:
    found = gpu_emulated.emulated(Pair("13B", "bf16-z3-full-mb4x1", 64), "h200-141gb", 20 * GIB)
    assert found.problem == "it needs 50.5 GiB of host memory, and 20.0 GiB are free"


def test_offloaded_states_need_host_memory() -> None:
    found = gpu_emulated.emulated(Pair("3B", "bf16-fsdp-full-mb2x1-oparam", 1), "h200-141gb", 21 * GIB)
    assert found.problem == "it needs 61.2 GiB of host memory, and 21.0 GiB are free"


@pytest.mark.parametrize(
    ("outcome", "code", "expected"),
    [
        (0, 0, Result(PAIRS[0], 1, 2, 3, 0.5, 4)),
        (RAN_OUT, 6, Result(PAIRS[0], ran_out=True)),
        (1, 1, Result(PAIRS[0], problem="RuntimeError: it broke")),
        (0, 1, Result(PAIRS[0], problem="RuntimeError: it broke")),
    ],
)
def test_an_emulated_pair_is_kept_as_a_measured_one(
    outcome: int, code: int, expected: Result, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    line = '{"allocated_bytes": 1, "reserved_bytes": 2, "device_bytes": 3, "step_seconds": 0.5, "building_bytes": 4}'
    said = "warned of something\n" + ("RuntimeError: it broke\n" if expected.problem else f"{line}\n")
    ended = subprocess.CompletedProcess([], code, f'{{"exitCode": {outcome}}}', said)
    monkeypatch.setattr("gpu_emulated.subprocess.run", lambda *_, **__: ended)
    monkeypatch.setattr("gpu_emulated.machine", lambda _: MACHINE)
    for _ in range(2):
        assert gpu_emulated.main(["h200-141gb", str(tmp_path), "--model", PAIRS[0].model, "--most", "1"]) == 0
    kept = list(Results(tmp_path).of_pairs.values())
    assert kept[0] == expected
    assert len(kept) == 1 + (not expected.problem), "what failed is tried again"


@pytest.mark.parametrize("output", ["", "Killed", "[]", '{"exitCode": 0}'])
def test_an_emulated_pair_without_a_result_is_a_problem(output: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = subprocess.CompletedProcess([], 0, output, "warned of something\n")
    monkeypatch.setattr("gpu_emulated.subprocess.run", lambda *_, **__: ended)
    found = gpu_emulated.emulated(PAIRS[0], "h200-141gb", 99 * GIB)
    assert found == Result(PAIRS[0], problem="it told no measurement: warned of something")


def test_peaks_are_kept_with_the_emulated_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gpu_emulated, "_PYTHON", sys.executable)
    assert gpu_emulated.main(["h200-141gb", str(tmp_path), "--most", "0"]) == 0
    (machine,) = Results(tmp_path).machines
    assert (machine.product, machine.gpu.name, machine.torch) == ("NVIDIA H200", "h200-141gb", torch.__version__)


def test_a_python_that_ends_with_an_error_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'gpu_table'\" >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(gpu_emulated, "_PYTHON", python)
    assert gpu_emulated.main(["h200-141gb", str(tmp_path / "kept"), "--most", "0"]) == 1
    assert capsys.readouterr().err == f"gpu_emulated: {python}: ModuleNotFoundError: No module named 'gpu_table'\n"


_LATE = """
import sys, time
import gpu_truth
from gpu_table import Machine

gpu_truth.no_gpu = lambda: None
gpu_truth.this_machine = lambda: Machine("NVIDIA A", 80 << 30, "1", "1", "1", "1", "1")

def measure_all(found, pairs, deadline, *_):
    print(deadline - time.monotonic())
    return gpu_truth.Counts(1)

gpu_truth.measure_all = measure_all
time.sleep(float(sys.argv[1]))
gpu_truth.main(["--measure-only", "--folder", sys.argv[2], "--seconds", "100"])
"""


def test_the_time_of_a_call_counts_from_its_start_and_not_from_when_torch_is_imported(tmp_path: Path) -> None:
    began = time.monotonic()
    words = [sys.executable, "-c", _LATE, "2", str(tmp_path)]
    environment = gpu_measure.variables(PAIRS[0], dict(os.environ))
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    left, took = float(done.stdout.split()[0]), time.monotonic() - began
    assert 100 - took - 0.1 <= left <= 98


def test_a_line_that_was_cut_off_as_it_was_written_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "pairs.jsonl").write_text('{"pair": {"model": "0.')
    Results(tmp_path).begin(MACHINE)
    assert Results(tmp_path).machines == [MACHINE]


def test_other_drivers_share_the_page_and_other_gpus_have_their_own(tmp_path: Path) -> None:
    later, other = MACHINE._replace(driver="580.1"), MACHINE._replace(product="NVIDIA H200")
    for number, machine in enumerate((MACHINE, later, other, MACHINE)):
        kept = Results(tmp_path)
        kept.begin(machine)
        kept.add(Result(PAIRS[number], allocated_bytes=1))
        kept.add(Result(PAIRS[9], allocated_bytes=number))
    found = Results(tmp_path)
    assert found.products == [MACHINE.product, other.product]
    assert (found.product, found.machines) == (MACHINE.product, [MACHINE, later])
    assert list(found.of_pairs) == [PAIRS[0], PAIRS[9], PAIRS[1], PAIRS[3]]
    assert found.of_pairs[PAIRS[9]].allocated_bytes == 3
    found.product = other.product
    assert found.machines == [other]
    assert [each.allocated_bytes for each in found.of_pairs.values()] == [1, 2]


@pytest.mark.parametrize(
    ("does", "version"),
    [
        ("echo 580.1", "580.1"),
        ("exec sleep 60", "unknown"),
        ("exit 9", "unknown"),
        ("echo No devices were found", "unknown"),
    ],
)
def test_an_nvidia_smi_that_fails_or_hangs_costs_no_measurement(
    does: str, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{does}\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(gpu_driver, "_SMI_SECONDS", 1.0)
    monkeypatch.setattr(gpu_driver, "of_library", lambda: None)
    assert gpu_driver.driver() == version


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_without_nvidia_smi_a_driver_is_known_by_the_name_of_its_library(tmp_path: Path) -> None:
    """Two drivers would look like one."""
    words = ["cc", "-shared", "-x", "c", os.devnull, "-o", str(tmp_path / "libcuda.so.580.65.06")]
    subprocess.run(words, check=True)
    (tmp_path / "libcuda.so.1").symlink_to("libcuda.so.580.65.06")
    done = subprocess.run(
        [sys.executable, "-c", "import gpu_driver; print(gpu_driver.driver())"],
        env={"PATH": "", "PYTHONPATH": os.pathsep.join(sys.path), "LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "580.65.06\n"


def test_fixtures_are_kept_in_one_file(tmp_path: Path) -> None:
    def measured(pair: Pair, fixture: Path | None, _limit_seconds: float) -> Result:
        assert fixture is not None
        fixture.write_text(pair.plan)
        return Result(pair, GIB, GIB, GIB, 1.0)

    gpu_truth.measure_all(Results(tmp_path), PAIRS[:3], math.inf, True, measured)
    gpu_truth.measure_all(Results(tmp_path), PAIRS[2:4], math.inf, True, measured)
    assert sorted(each.name for each in tmp_path.iterdir()) == [FIXTURES_FILE, PAIRS_FILE]
    assert collect._unpack_fixtures(tmp_path, tmp_path / "snapshots")
    assert {each.name: each.read_text() for each in (tmp_path / "snapshots").iterdir()} == {
        f"{pair.model}-{pair.plan}-{pair.world}.json.gz": pair.plan for pair in PAIRS[:4]
    }


def test_a_fixture_that_was_cut_off_as_it_was_written_loses_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("first", "cut-off", "last"):
        (tmp_path / name).write_text(name)
        Results(tmp_path / "kept").add_fixture(tmp_path / name)
        kept = tmp_path / "kept" / FIXTURES_FILE
        if name == "cut-off":
            os.truncate(kept, kept.stat().st_size - 5)
    assert not collect._unpack_fixtures(tmp_path / "kept", tmp_path / "snapshots")
    assert sorted(each.name for each in (tmp_path / "snapshots").iterdir()) == ["first", "last"]
    assert f"{kept}: 1 lines cannot be read" in capsys.readouterr().err


def test_a_fixture_for_which_there_is_no_room_is_left_out_and_the_pair_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that is too large would not come back from the machine at all."""

    def measured(pair: Pair, fixture: Path | None, _limit_seconds: float) -> Result:
        assert fixture is not None
        fixture.write_bytes(bytes(600))
        return Result(pair, GIB)

    monkeypatch.setattr("gpu_results._MOST_FIXTURES_BYTES", 2000)
    gpu_truth.measure_all(Results(tmp_path), PAIRS[:3], math.inf, True, measured)
    assert (tmp_path / FIXTURES_FILE).stat().st_size < 2000
    assert list(Results(tmp_path).of_pairs) == list(PAIRS[:3])
    assert f"gpu_truth: {PAIRS[2]}: {tmp_path} has no room for its fixture\n" in capsys.readouterr().err


def test_a_pair_that_cannot_be_ended_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that hangs in the driver."""
    made: list[subprocess.Popen[bytes]] = []

    class Hanging(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            made.append(self)

        def kill(self) -> None:
            pass

    monkeypatch.setattr(gpu_truth, "command", lambda *_: ["sleep", "60"])
    monkeypatch.setattr(gpu_truth, "_KILLED_SECONDS", 0.5)
    monkeypatch.setattr("gpu_truth.subprocess.Popen", Hanging)
    assert gpu_truth.measured(PAIRS[0], None, 1.0) == Result(PAIRS[0], problem="it did not end within 1 s")
    assert made[0].poll() is None, "it was waited for until its end"
    made[0].terminate()
    assert made[0].wait(30)


def test_another_gpu_is_measured_anew_and_has_a_page_and_fixtures_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_truth, "no_gpu", lambda: None)
    traces = dict.fromkeys(MODELS, TracedModel("small", small_trace()))

    def measured(pair: Pair, fixture: Path | None, _limit_seconds: float) -> Result:
        assert fixture is not None
        fixture.touch()
        return Result(pair, GIB, GIB, GIB, 1.0)

    other = Machine("NVIDIA H200", int(139.7 * GIB), *MACHINE[2:])
    for machine in (MACHINE, other):
        monkeypatch.setattr(gpu_truth, "this_machine", lambda machine=machine: machine)
        words = ["--folder", str(tmp_path), "--fixtures", "--most", "1"]
        capsys.readouterr()
        assert gpu_truth.main(words, measured, lambda _: traces) == 0
    assert sorted(each.name for each in tmp_path.iterdir()) == [FIXTURES_FILE, PAIRS_FILE]
    said = capsys.readouterr().out
    for product, page in zip((MACHINE.product, other.product), said.split("# Predicted ")[1:], strict=True):
        assert page.startswith(f"against measured on {product}\n")
        assert page.count(f"\n| {PAIRS[0].model} | {PAIRS[0].plan} |") == 1
    assert collect._unpack_fixtures(tmp_path, tmp_path / "snapshots")
    name = f"{PAIRS[0].model}-{PAIRS[0].plan}-1.json.gz"
    assert sorted(each.name for each in (tmp_path / "snapshots").iterdir()) == [
        f"NVIDIA-A100-SXM4-80GB-{name}",
        f"NVIDIA-H200-{name}",
    ]


def test_a_pair_is_kept_after_its_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between the two, it is measured again."""

    def measured(pair: Pair, fixture: Path | None, _limit_seconds: float) -> Result:
        assert fixture is not None
        fixture.touch()
        return Result(pair, GIB)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Results, "add_fixture", killed)
    with pytest.raises(KeyboardInterrupt):
        gpu_truth.measure_all(Results(tmp_path), PAIRS[:1], math.inf, True, measured)
    assert Results(tmp_path).of_pairs == {}


@pytest.mark.parametrize(
    ("problems", "code", "counts"),
    [
        (["", ""], 0, {"measured": 2, "failed": 0, "waited": 40}),
        (["", "it broke"], 1, {"measured": 1, "failed": 1, "waited": 40}),
        ([], 1, {"measured": 0, "failed": 0, "waited": 40}),
    ],
)
def test_a_call_that_only_measures_reports_and_counts_failures(
    problems: list[str],
    code: int,
    counts: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(gpu_truth, "this_machine", lambda: MACHINE)
    monkeypatch.setattr(gpu_truth, "no_gpu", lambda: None)
    left = iter(problems)
    words = ["--folder", str(tmp_path), "--measure-only", "--most", str(len(problems))]
    assert gpu_truth.main(words, lambda pair, *_: Result(pair, GIB, problem=next(left))) == code
    said = capsys.readouterr()
    assert json.loads(said.out) == counts
    assert [line for line in said.err.splitlines() if not re.match(r"gpu_truth: \d+ of \d+: ", line)] == [
        f"gpu_truth: {in_turns(PAIRS)[number]}: {each}" for number, each in enumerate(problems) if each
    ]


def test_where_nothing_waits_there_is_nothing_to_measure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gpu_truth, "this_machine", lambda: MACHINE)
    monkeypatch.setattr(gpu_truth, "no_gpu", lambda: None)
    for _ in range(2):
        assert gpu_truth.main(["--folder", str(tmp_path), "--measure-only"], lambda pair, *_: Result(pair, GIB)) == 0


def test_every_model_has_a_time_limit_of_its_own() -> None:
    assert list(gpu_truth.LIMIT_SECONDS) == list(MODELS)
    assert list(gpu_truth.LIMIT_SECONDS.values()) == sorted(gpu_truth.LIMIT_SECONDS.values())


@pytest.mark.parametrize("output", ["", "warned\n", '{"cut": \n', '{"of something else": 1}\n'])
def test_a_process_without_a_measurement_is_a_problem(output: str) -> None:
    assert gpu_truth.result_of(PAIRS[0], output).problem.startswith("it told no measurement: ")


def test_the_age_of_a_process_is_never_odd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "clock_gettime", lambda _: 1e9)
    assert gpu_truth._age_seconds() == 60
    monkeypatch.setattr(time, "clock_gettime", lambda _: 0.0)
    assert gpu_truth._age_seconds() == 0
    monkeypatch.delattr(time, "CLOCK_BOOTTIME")  # as on macOS
    assert gpu_truth._age_seconds() == 0
    monkeypatch.setattr(gpu_truth, "Path", lambda _: Path("/none"))
    assert gpu_truth._age_seconds() == 0


def test_without_a_limit_the_age_of_the_process_is_not_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gpu_truth, "this_machine", lambda: MACHINE)
    monkeypatch.setattr(gpu_truth, "no_gpu", lambda: None)
    monkeypatch.delattr(gpu_truth, "_age_seconds")
    words = ["--folder", str(tmp_path), "--measure-only", "--most", "1"]
    assert gpu_truth.main(words, lambda pair, *_: Result(pair, GIB)) == 0


def test_weights_are_drawn_once() -> None:
    with gpu_measure._drawn_once():
        decoder = Decoder(SMALL)
    for name, weight in decoder.named_parameters():
        assert weight.isfinite().all(), name
    assert decoder.head.weight.std().item() == pytest.approx(0.02, rel=0.1)
    again = Decoder(SMALL)
    assert not torch.equal(again.head.weight, decoder.head.weight), "what comes after draws by itself again"


def test_a_pair_imports_from_the_same_path_as_its_caller() -> None:
    variables = gpu_measure.variables(Pair("0.1B", "bf16-ddp-none-mb1x1-exp"), {"PATH": "/bin"})
    assert variables["PYTHONPATH"].split(os.pathsep) == sys.path
    assert (variables["PATH"], variables["PYTORCH_ALLOC_CONF"]) == ("/bin", "expandable_segments:True")


def test_an_abort_at_pythons_end_loses_nothing_that_was_measured() -> None:
    ends = "import atexit, os; from gpu_measure import end; atexit.register(os.abort); print('{}'); end(3)"
    done = subprocess.run(
        [sys.executable, "-c", ends],
        env=gpu_measure.variables(PAIRS[0], dict(os.environ)),
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (3, b"{}\n")


def test_a_dead_process_is_reported_with_its_last_output() -> None:
    assert gpu_truth.last_words("Traceback\n  File\ntorch.OutOfMemoryError: CUDA out of memory.\n\n").endswith(
        "memory."
    )
    assert gpu_truth.last_words("") == "it ended without a word"


@pytest.mark.parametrize("plan", ["bf16-ddp-none-mb2x2", "bf16-z2-full-mb2x1", "fp32-fsdp-every2-mb2x1"])
@pytest.mark.usefixtures("one_of_two")
@pytest.mark.filterwarnings("ignore")  # those of the libraries that are imported here for the first time
def test_a_rank_of_two_is_measured(plan: str) -> None:
    with VirtualGpu(GIB) as gpu:
        found = measure(Pair("tiny", plan, 2), TINY, 16, torch.device("cpu"), VirtualStatistics(gpu))
    assert 0 < found.allocated_bytes <= found.reserved_bytes == found.device_bytes
    assert found.step_seconds > 0


@pytest.mark.parametrize("plan", ["bf16-ddp-full-mb4x2", "bf16-z3-none-mb4x1-bk1m", "fp32-fsdp-every2-mb4x1"])
@pytest.mark.usefixtures("one_of_two", "one_thread")
@pytest.mark.filterwarnings("ignore")
def test_the_trace_of_a_pair_takes_the_memory_of_its_training(plan: str, small: TracedModel) -> None:
    """Except for what a GPU's attention does differently from a CPU's."""
    with VirtualGpu(GIB) as gpu:
        found = measure(Pair("small", plan, 2), SMALL, 128, torch.device("cpu"), VirtualStatistics(gpu))
    replayed = Replayer(small.trace, gpus_per_node=2, rank=0).replay(Plan.parse(plan)).peak
    assert replayed.allocated == pytest.approx(found.allocated_bytes, rel=0.03)


@pytest.mark.parametrize("is_left", [True, False])
@pytest.mark.usefixtures("one_of_two")
@pytest.mark.filterwarnings("ignore")
def test_gradients_that_fake_ranks_scatter_are_numbers(is_left: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some releases of torch leave them as the memory was."""
    plain = (lambda *_, **__: None) if is_left else distributed.reduce_scatter_tensor
    monkeypatch.setattr(distributed, "reduce_scatter_tensor", plain)
    fake_ranks.scatter_own(2)
    assert (distributed.reduce_scatter_tensor is not plain) == is_left
    result = torch.full((2, 3), math.nan)
    distributed.reduce_scatter_tensor(output=result, input=torch.arange(12.0).view(4, 3))
    assert result.flatten().tolist() == list(range(6))


@pytest.mark.usefixtures("one_of_two")
@pytest.mark.filterwarnings("ignore")
def test_where_no_step_was_made_nothing_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_measure, "loss", lambda model, tokens: model(tokens)[0] * float("inf"))
    with VirtualGpu(GIB) as gpu, pytest.raises(RuntimeError, match="skipped every step"):
        measure(Pair("tiny", "fp16-fsdp-none-mb2x1", 2), TINY, 16, torch.device("cpu"), VirtualStatistics(gpu))


@pytest.mark.usefixtures("one_of_two")
def test_a_precision_that_this_machine_lacks_is_refused() -> None:
    with VirtualGpu(GIB) as gpu, pytest.raises(PlanError, match="no fp8"):
        measure(Pair("tiny", "fp8-ddp-none-mb2x1", 2), TINY, 16, torch.device("cpu"), VirtualStatistics(gpu))


@pytest.mark.usefixtures("one_of_two")
def test_a_process_that_runs_out_of_memory_says_so_in_its_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    pair = Pair("tiny", "bf16-ddp-none-mb2x1", 2)
    with VirtualGpu(MIB) as gpu:
        memory = VirtualStatistics(gpu)
        assert print_measured(lambda: measure(pair, TINY, 64, torch.device("cpu"), memory), memory) == RAN_OUT
    said = capsys.readouterr()
    assert (said.out, "out of memory" in said.err) == ("", True)


def test_a_library_without_a_handle_ran_out_of_memory_only_where_the_device_is_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def without_handle() -> Measured:
        raise RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`")

    memory = VirtualStatistics(VirtualGpu(GIB))
    monkeypatch.setattr(memory, "free_bytes", lambda: 100 * MIB)
    assert print_measured(without_handle, memory) == RAN_OUT
    monkeypatch.setattr(memory, "free_bytes", lambda: 4000 * MIB)
    with pytest.raises(RuntimeError):
        print_measured(without_handle, memory)


def test_any_other_error_is_not_an_out_of_memory() -> None:
    def broken() -> Measured:
        raise RuntimeError("it speaks of memory")

    with pytest.raises(RuntimeError):
        print_measured(broken, VirtualStatistics(VirtualGpu(GIB)))


@pytest.mark.parametrize(("code", "ran_out"), [(RAN_OUT, True), (1, False)])
def test_a_pair_whose_process_ran_out_of_memory_is_no_problem_but_a_result(
    code: int, ran_out: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = f"import sys; print('CUDA out of memory', file=sys.stderr); sys.exit({code})"
    monkeypatch.setattr(gpu_truth, "command", lambda *_: [sys.executable, "-c", ends])
    found = gpu_truth.measured(PAIRS[0])
    assert found == Result(PAIRS[0], ran_out=ran_out, problem="" if ran_out else "CUDA out of memory")


def test_the_stage_is_left_out_with_one_sentence_where_no_gpu_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    output = subprocess.run([sys.executable, str(GUARD)], capture_output=True, text=True, check=False)
    assert output.returncode == 3
    assert output.stdout.startswith("they need a CUDA GPU, and there is none")
    assert output.stdout.count("\n") == 1


# Where `dev/gpu-day collect` has kept nothing yet, there is nothing that a test could have left out.
if FIXTURES := sorted(KEPT.glob("*.json.gz")):

    @pytest.mark.parametrize("fixture", FIXTURES, ids=lambda each: each.name)
    def test_fixtures_of_real_gpus_are_replayed_as_recorded(fixture: Path) -> None:
        kept = read(fixture)
        assert replayed(kept) == recorded(kept)
