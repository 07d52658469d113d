"""Where no CUDA GPU is, each test of this directory is skipped, with the reason."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cuda_requirements import IS_EMULATED, why_not

from memtune_runner.install import install

if IS_EMULATED:
    # What steps compute is not looked at there: a short batch, and a save in the middle, are in so many. A pair has the
    # optimizer's states from its second step on.
    os.environ.setdefault("TRAINED_STEPS", "5")
    os.environ.setdefault("MEASURED_STEPS", "2")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--results", type=Path, metavar="DIRECTORY", help="where pages and fixtures are kept (a temporary directory)"
    )


class _AtOnce:
    """Shows why a test failed when it fails: a GPU's time may be up before pytest's summary."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            terminal.write_line(f"\n{report.longreprtext[-4000:]}")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_AtOnce(config))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [each for each in items if Path(__file__).parent in each.path.parents]
    reason = why_not() if here else None
    for each in here:
        # A Python with a CUDA build has other releases of the libraries, and those warn of other things.
        each.add_marker(pytest.mark.filterwarnings("default"))
        if reason:
            each.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A training that hangs leaves time for the next test: on a GPU each of them takes seconds."""
    if not IS_EMULATED:
        # For each script: the first one imports from a cold disk.
        monkeypatch.setattr("small_trainings.LIMIT_SECONDS", 90)
        monkeypatch.setattr("launches.TIMEOUT_SECONDS", 90)  # for each launch
        monkeypatch.setattr("engine_suite.TIMEOUT_SECONDS", 100)  # for all plans together


@pytest.fixture(scope="session")
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the tests write that may be kept: a page, and fixtures in one file. None in the checkout unless asked."""
    directory: Path = request.config.getoption("--results") or tmp_path_factory.mktemp("results")
    directory.mkdir(parents=True, exist_ok=True)
    return directory


@pytest.fixture(scope="session")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runner as a pod has it."""
    directory = tmp_path_factory.mktemp("pod") / "runner"
    install(directory)
    return directory
