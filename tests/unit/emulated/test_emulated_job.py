"""A job with `device: emulated`: decisions, messages, variables of its process, and where it may run."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cluster_situations import condition, die, last, probed
from small_jobs import make_job, template

from memtune.api.job import Job
from memtune.gpus.gpu import GPUS
from memtune.plans.plan import Plan
from memtune.units import GIB
from memtune.wire import environment
from memtune.wire.report import Device, Ending, Phase
from memtune.wire.run import Run, RunKind
from memtune_cli.input.job_view import JobView
from memtune_cli.views.job_page import page
from memtune_cli.views.next_step import next_step
from memtune_cli.views.report_page import html_page
from memtune_cli.views.screen import Screen
from memtune_operator.local.backend import blocker_of
from memtune_operator.local.checkpoints import checkpoint_path
from memtune_operator.pods import variables
from memtune_runner.command.command import parse
from memtune_runner.emulated import job_rank, phase_peaks
from memtune_runner.emulated.errors import NoCudaTorchError
from memtune_runner.emulated.phase_peaks import PhasePeaks
from memtune_runner.emulated.rank import _words
from memtune_runner.rank import phases
from memtune_runner.rank.bad_input import BadInputError
from memtune_runner.rank.settings import Settings

RUN = Run(RunKind.TRAIN, 1, Plan.parse("bf16-z1-none-mb4x1"))


def job(**resources: Any) -> Job:
    emulated = {"nodes": 1, "gpusPerNode": 1, "gpuProduct": "h100-80gb", "gpuMemory": "8Gi", "device": "emulated"}
    return make_job(resources={**emulated, **resources})


def job_view_of(cluster: Any) -> JobView:
    from memtune.controller.records import read_status, restore

    return JobView("tiny", "default", restore(cluster.job, read_status(cluster.status)), cluster.job)


def test_an_emulated_jobs_speed_is_the_predicted_one() -> None:
    cluster = probed(job(), device=Device.EMULATED, tokens_per_second=1.0, step_seconds=900.0)
    probes = cluster.status["probes"]
    assert not any(probe["tokensPerSecond"] or probe["stepSeconds"] for probe in probes)
    plan = cluster.status["plan"]
    assert plan["tokensPerSecond"] > 1000
    told = condition(cluster, "Tuned")["message"]
    assert f"speed not measured, {plan['tokensPerSecond']:,} tokens/s predicted" in told
    (run,) = cluster.runs(RunKind.TRAIN)
    cluster.finish(run, device=Device.EMULATED, tokens_per_second=1.0)
    cluster.reconcile()
    assert cluster.status["plan"]["tokensPerSecond"] > 1000


def test_every_record_and_every_sentence_says_that_it_is_emulated() -> None:
    cluster = probed(job(), device=Device.EMULATED)
    assert all(probe["emulated"] for probe in cluster.status["probes"])
    assert any("probe 1 emulates " in event for event in cluster.events)
    assert any("emulated probe 1 " in event and "succeeded: emulated " in event for event in cluster.events)
    assert not any("measures" in event or "trains" in event for event in cluster.events)
    running = job_view_of(cluster)
    assert next_step(running).startswith("it runs to its end, emulated")
    die(cluster, Ending.DEVICE_OOM, 85, device=Device.EMULATED, phase=Phase.FORWARD)
    assert any("emulated attempt 1 " in event and "ran out of GPU memory" in event for event in cluster.events)
    assert last(cluster)["number"] == 2
    assert last(cluster)["emulated"]
    cluster.start(last(cluster)["name"])
    cluster.finish(last(cluster)["name"], device=Device.EMULATED)
    cluster.reconcile()
    assert "run to its end on an emulated GPU, no model was trained" in cluster.status["message"]
    view = job_view_of(cluster)
    shown = "\n".join(page(Screen(100, colours=False, unicode=True), view, cluster.now))
    assert "emulated h100-80gb of " in shown
    assert "emulated  █" in shown
    assert "measured  █" not in shown
    assert "ran to its end, emulated" in shown
    assert "Run on an emulated GPU" in html_page(view, [], [], [], cluster.now)


def test_the_process_has_the_name_and_size_of_its_gpu() -> None:
    found = variables.of_pod(job(nodes=2, gpusPerNode=4), RUN, 0, "/dev/termination-log")
    assert found[environment.DEVICE] == "emulated"
    assert (found[environment.GPU_NAME], found[environment.GPU_MEMORY_BYTES]) == ("h100-80gb", str(8 * GIB))
    sold = variables.of_pod(job(gpuProduct="NVIDIA-H100-80GB-HBM3", gpuMemory="80Gi"), RUN, 0, "")
    assert sold[environment.GPU_MEMORY_BYTES] == str(GPUS["h100-80gb"].usable_bytes)
    half = variables.of_pod(job(memoryShare="50%"), RUN, 0, "")
    assert (half[environment.GPU_MEMORY_BYTES], half[environment.MEMORY_SHARE]) == (str(4 * GIB), "")


def test_a_rehearsal_reduces_the_gpus_memory() -> None:
    found = variables.of_pod(job(shrink={"afterStep": 3, "by": "25%"}), RUN, 0, "")
    assert found[environment.SHRINK] == f"3:{6 * GIB}"


def test_one_pod_stands_for_all_nodes() -> None:
    assert blocker_of(job(nodes=2)) is None
    resources = job(nodes=2, gpusPerNode=4).spec.resources
    assert (resources.pods, resources.gpus_per_pod) == (1, 8)
    own = make_job(nodes=2).spec.resources
    assert (own.pods, own.gpus_per_pod) == (2, 1)


def test_a_product_that_nobody_knows_is_refused() -> None:
    unknown = blocker_of(job(gpuProduct="NVIDIA-H900"))
    assert unknown is not None
    assert "gpuProduct: NVIDIA-H900 is unknown" in unknown.message


def test_emulated_checkpoints_are_outside_the_directory_of_real_ones(tmp_path: Path) -> None:
    own = make_job(checkpoint={"path": str(tmp_path / "own")}, template=template())
    emulated = own.model_copy(update={"spec": own.spec.model_copy(update={"resources": job().spec.resources})})
    assert checkpoint_path(own, tmp_path) == str(tmp_path / "own")
    assert checkpoint_path(emulated, tmp_path) == str(tmp_path / "emulated-checkpoints")


def test_a_job_sees_its_emulated_gpus_whichever_real_ones_are_to_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_rank, "_torch_of", lambda *_: None)
    monkeypatch.setattr("memtune_runner.emulated.job_rank.gpu_variables.variables", lambda *_: {})
    settings = Settings(
        RUN.plan, RunKind.PROBE, "env", 4, 8, device=Device.EMULATED, gpu_name="h100-80gb", gpu_memory_bytes=GIB
    )
    found = job_rank.variables(replace(settings, global_batch=8, gpus_per_node=2), parse(["python", "train.py"]), ())
    assert found == {"CUDA_VISIBLE_DEVICES": "0,1"}


def test_a_command_whose_torch_cannot_be_known_is_refused() -> None:
    settings = Settings(
        RUN.plan, RunKind.PROBE, "env", 4, 8, device=Device.EMULATED, gpu_name="h100-80gb", gpu_memory_bytes=GIB
    )
    with pytest.raises(BadInputError, match=r"device emulated: ./train\.sh starts neither Python nor a launcher"):
        job_rank.variables(settings, parse(["./train.sh"]), ())
    with pytest.raises(BadInputError, match=r"device emulated: sh starts neither Python nor a launcher"):
        job_rank.variables(settings, parse(["sh", "-c", "./prepare.sh && ./train.sh"]), ())


@pytest.mark.parametrize(
    "words",
    [
        ["sh", "-c", "cd / && exec torchrun --nproc-per-node 2 train.py --batch=$((4 * 2))"],
        ["bash", "-ec", "pip list\nA=1 /opt/own/bin/python train.py; echo ended"],
        ["bash", "-c", "torchrun \\\n  train.py\ntorchrun --version"],
        ["litgpt", "finetune_full"],
        ["timeout", "--signal", "INT", "2h", "torchrun", "train.py"],
        ["sh", "-c", "(cd / && nice -n 5 torchrun train.py)"],
        ["sh", "-c", "if [ -f done ]; then exit; fi; if torchrun train.py; then touch done; fi"],
    ],
)
def test_the_torch_of_a_shell_and_of_a_console_script_is_that_of_their_python(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("torchrun", "litgpt"):
        script = tmp_path / name
        script.write_text(f"#!{sys.executable}\n")
        script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    looked: list[tuple[str, ...]] = []
    monkeypatch.setattr("memtune_runner.emulated.installed_torch.find_in", looked.append)
    monkeypatch.setattr("memtune_runner.emulated.job_rank.build", lambda *_: None)
    with suppress(AttributeError):  # nothing was found
        job_rank.prepare(words)
    assert looked == [("/opt/own/bin/python",) if "A=1" in words[-1] else (sys.executable,)]


def test_a_tool_in_python_beside_the_training_is_not_asked_for_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_in(python: tuple[str, ...]) -> str:
        if python != ("/opt/own/bin/python",):
            raise NoCudaTorchError(f"{python[0]} has no torch")
        return "the torch of the training"

    monkeypatch.setattr("memtune_runner.emulated.installed_torch.find_in", find_in)
    command = parse(["sh", "-c", "/opt/own/bin/python train.py && /usr/bin/python3 upload.py"])
    assert job_rank._torch_of(command, ()) == "the torch of the training"  # type: ignore[comparison-overlap]
    with pytest.raises(NoCudaTorchError, match="/usr/bin/python3 has no torch"):
        job_rank._torch_of(parse(["sh", "-c", "/usr/bin/python3 train.py"]), ())


class _Native:
    """The allocator's counters of two GPUs, as torch's C module reads and resets them."""

    def __init__(self) -> None:
        self.now, self.peak = [0, 0], [0, 0]

    def use(self, size: int, gpu: int = 0) -> None:
        self.now[gpu], self.peak[gpu] = size, max(self.peak[gpu], size)

    def _cuda_memoryStats(self, device: int) -> dict[str, Any]:  # noqa: N802 - torch's own name
        counters = {"all": {"current": self.now[device], "peak": self.peak[device]}}
        names = ("allocated_bytes", "active_bytes", "reserved_bytes")
        return {**{name: {"all": dict(counters["all"])} for name in names}, "oversize": {"current": 0}, "num_ooms": 0}

    def _cuda_resetPeakMemoryStats(self, device: int) -> None:  # noqa: N802 - as above
        self.peak[device] = self.now[device]


class _Torch:
    def __init__(self) -> None:
        self._C = _Native()
        self.cuda = self

    def is_initialized(self) -> bool:
        return True


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = _Torch()
    peaks = found._C.peak
    monkeypatch.setattr(phase_peaks, "used_gpus", lambda: {gpu: each for gpu, each in enumerate(peaks) if each})
    phases.reset()
    yield found
    phases.reset()


def test_each_phase_has_peaks_of_its_own_and_the_script_sees_its_own(torch: Any) -> None:
    peaks, native = PhasePeaks(torch), torch._C

    def shown() -> int:
        found: int = native._cuda_memoryStats(0)["allocated_bytes"]["all"]["peak"]
        return found

    native.use(10)
    phases.enter(Phase.FORWARD)
    native.use(50)
    native.use(30)
    phases.enter(Phase.BACKWARD)
    native.use(40)
    assert shown() == 50, "nothing was reset as far as the script knows"
    assert {phase: found["allocated"] for phase, found in peaks.by_phase().items()} == {
        "init": 10,
        "forward": 50,
        "backward": 40,
    }
    native._cuda_resetPeakMemoryStats(0)
    native.use(35)
    assert shown() == 40
    assert peaks.since_last_call()["reserved"] == 50, "what the script resets is not lost"
    assert peaks.since_last_call()["reserved"] == 35


def test_each_gpu_has_peaks_and_a_phase_has_those_of_the_fullest(torch: Any) -> None:
    peaks, native = PhasePeaks(torch), torch._C
    native.use(10)
    phases.enter(Phase.FORWARD)
    native.use(50, gpu=1)
    native.use(30)
    phases.enter(Phase.BACKWARD)
    native.use(20, gpu=1)
    assert peaks.fullest() == 1
    assert {gpu: found["reserved"] for gpu, found in peaks.by_gpu().items()} == {0: 30, 1: 50}
    assert {phase: found["active"] for phase, found in peaks.by_phase().items()} == {
        "init": 10,
        "forward": 50,
        "backward": 50,
    }
    native._cuda_resetPeakMemoryStats(1)
    assert native._cuda_memoryStats(0)["allocated_bytes"]["all"]["peak"] == 30, "the script has reset the other one"
    assert native._cuda_memoryStats(1)["allocated_bytes"]["all"]["peak"] == 20


def test_the_log_explains_the_limits_of_an_emulated_run() -> None:
    measured = {
        "values": [
            {"file": "a.py", "line": 3, "value": "made up", "sizes": False, "times": 2},
            {"file": "a.py", "line": 4, "value": "true", "sizes": True, "times": 9},
        ],
        "compilations": 1,
        "stubs": [{"name": "cufftPlan1d", "calls": 2}],
        "otherProcesses": [
            {"gpu": 1, "processes": 2, "peakBytes": 3 * GIB, "togetherBytes": 5 * GIB, "upperBytes": 6 * GIB}
        ],
    }
    said = " ".join(_words(measured))
    assert "no trained model" in said
    assert "read 2 values that no kernel has computed (a.py:3); memory may depend on them" in said
    assert "torch.compile" in said
    assert "the script called functions that only pretended to succeed: cufftPlan1d" in said
    assert "processes that the script started took up to 3.0 GiB of GPU 1" in said


def test_the_log_says_how_many_sizes_of_tensors_were_made_up() -> None:
    read = {"file": "a.py", "line": 3, "value": "made up", "sizes": True, "times": 2}
    said = " ".join(_words({"values": [read], "compilations": 0, "stubs": [], "otherProcesses": []}))
    assert "(a.py:3); 2 sizes of tensors came from them, so memory depends on them" in said
