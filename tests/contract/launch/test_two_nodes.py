"""Two nodes, as two launchers on this machine: one rendezvous, one end."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from launches import Launch, Place, free_port, install_runner, wait_for
from warm_environment import training_python

from memtune.wire.report import Ending

WAIT = "time.sleep(60)"
READY = "open(f'ready-{rank}', 'w').close()"
HEAD = "import os, time\nrank = os.environ['RANK']\n"


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_runner(tmp_path_factory.mktemp("pod") / "runner")


@pytest.fixture
def place(runner: Path, tmp_path: Path) -> Place:
    return Place(runner, tmp_path, training_python())


def start_both(place: Place, script: str) -> tuple[Launch, Launch]:
    """Start both nodes, the rendezvous host last, so that the other has to wait."""
    variables = {"MEMTUNE_RENDEZVOUS": f"localhost:{free_port()}"}
    other, host = (place.start("python", script, node=node, nodes=2, variables=variables) for node in (1, 0))
    return host, other


def wait_until_ready(place: Place, *launches: Launch) -> None:
    for rank, launch in enumerate(launches):
        wait_for(launch, place.directory / f"ready-{rank}")


def test_the_ranks_of_all_nodes_meet_and_end_well(place: Place) -> None:
    script = place.script(
        "import os, torch.distributed as dist, torch\n"
        "dist.init_process_group('gloo')\n"
        "total = torch.tensor([dist.get_rank() + 1])\n"
        "dist.all_reduce(total)\n"
        "print('total', total.item(), 'of', dist.get_world_size())\n"
        "dist.destroy_process_group()\n"
    )
    for launch in start_both(place, script):
        report = launch.end().report
        assert "total 3 of 2" in launch.stdout, launch.stderr
        assert (report.ending, report.world, report.failure_order) == (Ending.SUCCEEDED, 2, None)


@pytest.mark.parametrize("failing", [0, 1])
def test_a_failure_on_one_node_ends_the_other(place: Place, failing: int) -> None:
    end = "raise MemoryError('no more')"
    both = start_both(place, place.script(f"{HEAD}if rank == '{failing}':\n    {end}\n{WAIT}"))
    reports = [launch.end().report for launch in both]
    cause, echo = reports[failing], reports[1 - failing]
    assert (cause.ending, cause.exit_code, cause.rank, cause.failure_order) == (Ending.HOST_OOM, 86, failing, 0)
    assert (echo.ending, echo.exit_code, echo.failure_order) == (Ending.TERMINATED, 86, 1)
    assert f"node {failing} ended first (host-oom): MemoryError: no more" in echo.message


def test_a_consequence_on_one_node_waits_for_the_cause_on_the_other(place: Place) -> None:
    echo = "raise RuntimeError('NCCL communicator was aborted')"
    cause = "time.sleep(0.3); os.kill(os.getpid(), 9)"
    script = place.script(
        f"{HEAD}{READY}\n"
        "while not os.path.exists('ready-0') or not os.path.exists('ready-1'):\n    time.sleep(0.01)\n"
        f"if rank == '0':\n    {echo}\n{cause}"
    )
    host, other = (launch.end().report for launch in start_both(place, script))
    assert (other.ending, other.exit_code, other.failure_order) == (Ending.KILLED, 137, 0)
    assert host.failure_order == 1


def test_sigterm_to_one_node_ends_both_and_both_may_save(place: Place) -> None:
    save = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: (open(f'saved-{rank}', 'w'), sys.exit(0)))\n"
    host, other = start_both(place, place.script(f"{HEAD}{save}{READY}\n{WAIT}"))
    wait_until_ready(place, host, other)
    other.process.send_signal(signal.SIGTERM)
    for rank, launch in enumerate((host, other)):
        report = launch.end().report
        assert (report.ending, report.exit_code) == (Ending.TERMINATED, 143)
        assert (place.directory / f"saved-{rank}").exists()


@pytest.mark.parametrize("lost", [0, 1])
def test_a_node_that_is_lost_ends_the_other(place: Place, lost: int) -> None:
    both = start_both(place, place.script(f"{HEAD}{READY}\n{WAIT}"))
    wait_until_ready(place, *both)
    both[lost].process.kill()
    both[lost].process.communicate()
    report = both[1 - lost].end().report
    assert (report.ending, report.exit_code) == (Ending.TERMINATED, 143)
    assert f"node {lost} is lost" in report.message


def test_a_rendezvous_without_a_host_is_bad_input(place: Place) -> None:
    variables = {"MEMTUNE_RENDEZVOUS": "nowhere.invalid:1", "MEMTUNE_RENDEZVOUS_SECONDS": "1"}
    report = place.start("true", node=1, nodes=2, variables=variables).end().report
    assert (report.ending, report.exit_code) == (Ending.BAD_INPUT, 88)
    assert "nowhere.invalid:1 cannot be reached within 1 s" in report.message


def test_a_probe_waiting_for_a_missing_node_has_not_hung(place: Place) -> None:
    variables = {
        "MEMTUNE_RENDEZVOUS": f"localhost:{free_port()}",
        "MEMTUNE_RUN_KIND": "probe",
        "MEMTUNE_PROBE_SECONDS": "1",
    }
    report = place.start("true", nodes=2, variables=variables).end().report
    assert (report.ending, report.exit_code) == (Ending.TERMINATED, 143)


def test_a_node_that_does_not_come_is_named(runner: Path, tmp_path: Path) -> None:
    place = Place(runner, tmp_path)  # a launcher that imports torch itself
    variables = {"MEMTUNE_RENDEZVOUS": f"localhost:{free_port()}", "MEMTUNE_RENDEZVOUS_SECONDS": "1"}
    report = place.start("true", nodes=2, variables=variables).end().report
    assert (report.ending, report.exit_code) == (Ending.BAD_INPUT, 88)
    assert "node 1 did not come to the rendezvous" in report.message
