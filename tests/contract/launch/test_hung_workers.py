"""A hanging worker is ended, with its threads' stacks in the log and a report."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

import pytest
from launches import Launch, Place, free_port
from small_trainings import ROOT
from warm_environment import read_by_libraries, training_python
from warm_pythons import TRACING, WarmPython

from memtune.units import MIB
from memtune.wire.report import Ending, read_report
from memtune_runner.install import install
from memtune_runner.rank.ranks import Rank, report_path

pytestmark = pytest.mark.long

TRAINING = """
import ctypes, os, time, torch

model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters())

def step():
    model(torch.ones(1, 8)).sum().backward()
    optimizer.step()

def stand_still():
    time.sleep(600)

def hold_the_interpreter():
    # As a stuck library does: no signal wakes it, and no other thread of Python's runs.
    lock = ctypes.create_string_buffer(64)
    while True:
        ctypes.PyDLL(None).pthread_mutex_lock(lock)

def train(then):
    for number in range(3):
        step()
        if number == 1:
            then()
"""
RANK_1_IN_C = f"{TRAINING}\ntrain(hold_the_interpreter if os.environ['RANK'] == '1' else stand_still)\n"
ROOM = {"MEMTUNE_GPU_MEMORY_BYTES": str(64 * MIB)}
HANGING = """
import time, torch
from memtune.plans.plan import Plan
from memtune.wire.report import Device
from memtune.wire.run import RunKind
from memtune.units import MIB
from memtune_runner.rank.ranks import Rank
from memtune_runner.rank.settings import Settings
from memtune_runner.watch import watching
from memtune_runner.watch.hang import HangLimits
{mishap}
def stand_still():
    time.sleep(600)

plan = Plan.parse("fp32-ddp-none-mb4x1")
settings = Settings(plan, RunKind.TRAIN, "env", 4, 8, device=Device.VIRTUAL, gpu_memory_bytes=64 * MIB)
limits = HangLimits(300, {after_loop}, least_seconds=1, steps=0, period_seconds=0.1)
with watching(settings, Rank(0, 0, 1, 1, 0), hang_limits=limits):
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters())
    for number in range(3):
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        if number == {hangs_at}:
            stand_still()
    if {seconds_after}:
        time.sleep({seconds_after})
"""


# Breaks what the watchdog's thread must not use.
NO_DEVICE = """
import threading
from memtune_runner.device.statistics import VirtualStatistics
plain = VirtualStatistics.read

def read(statistics):
    assert threading.current_thread() is threading.main_thread(), "a broken GPU raises, or never answers"
    return plain(statistics)

VirtualStatistics.read = read
"""
RAISING = """
from memtune_runner.watch import rank_report
rank_report.report_of = None
"""
BLOCKED = """
from memtune_runner.watch import rank_report
rank_report.report_of = lambda *_: time.sleep(600)
"""


class Ended(NamedTuple):
    """The exit code of a worker and all that it wrote."""

    returncode: int
    said: str


def hang(
    tmp_path: Path, mishap: str = "", hangs_at: int = 1, seconds_after: float = 0, after_loop: float = 300
) -> Ended:
    """Run a hanging worker without a launcher."""
    script = HANGING.replace("{mishap}", mishap).replace("{hangs_at}", str(hangs_at))
    script = script.replace("{seconds_after}", str(seconds_after)).replace("{after_loop}", str(after_loop))
    path = f"{ROOT / 'core'}:{ROOT / 'runner'}"
    environment = {"MEMTUNE_RANK_DIRECTORY": str(tmp_path), "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    file = tmp_path / "hanging.py"
    file.write_text(script)
    process = WarmPython([str(file)], environment, TRACING, read=read_by_libraries())
    try:
        said, _ = process.communicate(240)
    finally:
        process.kill()
    return Ended(process.returncode or 0, said)


def test_a_hang_ends_with_its_own_code_and_the_stacks_in_the_log(tmp_path: Path) -> None:
    done = hang(tmp_path, NO_DEVICE)
    assert done.returncode == 87, done.said
    assert "memtune: rank 0 hangs: no optimizer step ended for" in done.said
    assert "in stand_still" in done.said
    report = read_report(report_path(tmp_path, Rank(0, 0, 1, 1, 0)).read_bytes())
    assert (report.ending, report.exit_code, report.steps) == (Ending.HUNG, 87, 2)
    assert report.memory.peak_allocated_bytes, "what was read when the last step ended"


@pytest.mark.parametrize("mishap", [RAISING, BLOCKED], ids=["raising", "blocked"])
def test_a_hang_ends_though_its_report_fails(mishap: str, tmp_path: Path) -> None:
    assert hang(tmp_path, mishap).returncode == 87


def test_work_after_the_training_loop_is_no_hang(tmp_path: Path) -> None:
    done = hang(tmp_path, hangs_at=-1, seconds_after=4)
    assert done.returncode == 0, done.said
    report = read_report(report_path(tmp_path, Rank(0, 0, 1, 1, 0)).read_bytes())
    assert (report.ending, report.steps) == (Ending.SUCCEEDED, 3)


def test_a_hang_after_the_training_loop_is_noticed_later(tmp_path: Path) -> None:
    began = time.monotonic()
    assert hang(tmp_path, hangs_at=-1, seconds_after=600, after_loop=6).returncode == 87
    assert time.monotonic() - began > 6


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A runner for which a second of silence is a hang, and which checks every other second."""
    directory = tmp_path_factory.mktemp("pod") / "runner"
    install(directory)
    limits = directory / "memtune_runner" / "watch" / "hang.py"
    patient = limits.read_text()
    impatient = patient.replace("least_seconds: float = 60.0", "least_seconds: float = 1.0")
    impatient = impatient.replace("steps: float = 10.0", "steps: float = 0.0")
    impatient = impatient.replace("period_seconds: float = 5.0", "period_seconds: float = 3.0")
    assert impatient.count(" 1.0") == patient.count(" 1.0") + 1
    assert impatient.count(" 3.0") == patient.count(" 3.0") + 1
    limits.write_text(impatient)
    return directory


@pytest.fixture
def place(runner: Path, tmp_path: Path) -> Place:
    return Place(runner, tmp_path, training_python())


def known_at(launch: Launch) -> float:
    """Return when a rank of this launch reported the hang."""
    assert launch.process.stderr is not None
    assert any("hangs: no optimizer step" in line for line in launch.process.stderr)
    return time.time()


def over_at(launch: Launch) -> float:
    """Return when all ranks had ended: the launcher then reports and leaves the other nodes."""
    return (launch.end().directory / "report.json").stat().st_mtime


def test_a_hang_stays_the_verdict_though_the_rank_is_terminated(place: Place) -> None:
    launch = place.run("python", place.script(f"{TRAINING}\ntrain(stand_still)\n"), variables=ROOM)
    report = launch.report
    assert (report.ending, report.exit_code, report.steps) == (Ending.HUNG, 87, 2), launch.stderr
    assert "no optimizer step ended for" in report.message
    assert launch.stderr.count("in stand_still") == 1


def test_a_hang_shows_the_stacks_of_all_ranks_also_of_one_that_is_stuck_in_c(place: Place) -> None:
    launch = place.run("python", place.script(RANK_1_IN_C), ranks=2, variables=ROOM)
    report = launch.report
    assert (report.ending, report.exit_code, report.rank) == (Ending.HUNG, 87, 0), launch.stderr
    shown = [line for line in launch.stderr.splitlines() if " in stand_still" in line or " in hold_the_" in line]
    assert sorted(line.split("]")[0] for line in shown) == ["[rank 0", "[rank 1"]


def test_a_hang_below_a_shell_shows_the_stacks_of_all_ranks(place: Place) -> None:
    place.script(RANK_1_IN_C)
    launch = place.start("sh", "-c", "python train.py; exit $?", ranks=2, variables=ROOM)
    assert known_at(launch) > over_at(launch) - 5
    assert (launch.report.ending, launch.exit_code, launch.report.rank) == (Ending.HUNG, 87, 0)
    assert "in hold_the_interpreter" in launch.stderr


def test_a_shell_may_go_on_after_the_hang_of_its_only_rank(place: Place) -> None:
    place.script(f"import sys\n{TRAINING}\ntrain(dict if '--resume' in sys.argv else stand_still)\n")
    launch = place.run("sh", "-c", "python train.py || python train.py --resume", variables=ROOM)
    assert "in stand_still" in launch.stderr
    assert (launch.report.ending, launch.exit_code, launch.report.steps) == (Ending.SUCCEEDED, 0, 3)


def test_a_hang_on_one_node_shows_the_stacks_of_the_other_and_ends_both_in_time(place: Place) -> None:
    script = place.script(RANK_1_IN_C)
    variables = {**ROOM, "MEMTUNE_RENDEZVOUS": f"localhost:{free_port()}"}
    other, host = (place.start("python", script, node=node, nodes=2, variables=variables) for node in (1, 0))
    assert known_at(host) > max(over_at(host), over_at(other)) - 5
    report = other.report
    assert (host.report.ending, host.exit_code, host.report.failure_order) == (Ending.HUNG, 87, 0)
    assert (report.ending, report.exit_code, report.failure_order) == (Ending.TERMINATED, 87, 1)
    assert "node 0 ended first (hung): no optimizer step" in report.message
    assert "in hold_the_interpreter" in other.stderr


SAVING_ALONE = f"""
import io
from torch import distributed
{TRAINING}
class Slow(io.BytesIO):
    slept = False

    def write(self, data):
        if not self.slept:
            self.slept = True
            time.sleep(14)
        return super().write(data)

def save():
    if distributed.get_rank() == 0:
        torch.save(model.state_dict(), Slow())
    distributed.barrier()

distributed.init_process_group("gloo")
train(save)
"""


@pytest.mark.parametrize("nodes", [1, 2])
def test_ranks_that_wait_for_one_that_saves_do_not_hang(nodes: int, tmp_path: Path) -> None:
    install(tmp_path / "runner")
    limits = tmp_path / "runner" / "memtune_runner" / "watch" / "hang.py"
    impatient = limits.read_text().replace("least_seconds: float = 60.0", "least_seconds: float = 6.0")
    limits.write_text(impatient.replace("period_seconds: float = 5.0", "period_seconds: float = 0.5"))
    place = Place(tmp_path / "runner", tmp_path, training_python())
    script = place.script(SAVING_ALONE)
    variables = {**ROOM, "MEMTUNE_RENDEZVOUS": f"localhost:{free_port()}"}
    launches = [
        place.start("python", script, ranks=2 // nodes, node=node, nodes=nodes, variables=variables)
        for node in range(nodes)
    ]
    for launch in launches:
        assert (launch.end().report.ending, launch.report.steps) == (Ending.SUCCEEDED, 3), launch.stderr
