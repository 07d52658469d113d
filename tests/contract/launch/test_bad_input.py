"""Bad input gives one line, a report and its own exit code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from launches import Place, install_runner
from warm_environment import launching_python

from memtune.wire.report import Ending
from memtune_runner.install import install

TO_DISK = {"MEMTUNE_PLAN": "bf16-z3-none-mb1x1-onvme"}


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_runner(tmp_path_factory.mktemp("pod") / "runner")


@pytest.fixture
def place(runner: Path, tmp_path: Path) -> Place:
    return Place(runner, tmp_path, launching_python())


@pytest.mark.parametrize(
    ("words", "variables", "message"),
    [
        (["python", "train.py"], {"MEMTUNE_PLAN": ""}, "MEMTUNE_PLAN is not set"),
        (["python", "train.py"], {"MEMTUNE_PLAN": '{"zero": 9}'}, "unknown fields"),
        (["python", "train.py"], {"MEMTUNE_PLAN": "bf16-z9-none-mb1x1"}, "z9"),
        (["python", "train.py"], {}, "there is no script train.py"),
        (["python", "-m"], {}, "add the module"),
        (["torchrun", "--nnodes=1"], {}, "names no script"),
        ([], {}, "no command"),
        (["no-such-program"], {}, "there is no program no-such-program"),
        (["/no/python3", "-c", ""], {}, "there is no program /no/python3"),
        (["python", "-c", ""], {"MEMTUNE_DEVICE": "cuda", "CUDA_VISIBLE_DEVICES": ""}, "asks for a GPU"),
        (["python", "-c", ""], TO_DISK, "MEMTUNE_NVME_PATH is missing"),
        (["python", "-c", ""], TO_DISK | {"MEMTUNE_NVME_PATH": "/no/disk"}, "/no/disk: there is no such directory"),
        (
            ["python", "-c", ""],
            {"MEMTUNE_DEVICE": "cuda", "MEMTUNE_GPUS_PER_NODE": "2", "NVIDIA_VISIBLE_DEVICES": "MIG-1a,MIG-2b"}
            | {"MEMTUNE_GLOBAL_BATCH": "2", "CUDA_VISIBLE_DEVICES": ""},
            "gpusPerNode to 1 and take a larger slice",
        ),
        (["python", "-c", ""], {"MEMTUNE_MEMORY_SHARE": "1.5"}, "not a share between 0 and 1"),
        (["true"], {"MEMTUNE_NODES": "2", "MEMTUNE_GLOBAL_BATCH": "2"}, "MEMTUNE_RENDEZVOUS"),
        (["true"], {"MEMTUNE_NODE_RANK": "5"}, "MEMTUNE_NODE_RANK=5: with MEMTUNE_NODES=1 it goes from 0 to 0"),
        (
            ["accelerate", "launch", "--config_file", "no.yaml", "-m", "trains"],
            {},
            "accelerate launch --config_file no.yaml: there is no such file in ",
        ),
        (
            ["sh", "-c", "python -m accelerate.commands.launch --config-file=/no.yaml -m trains"],
            {},
            "accelerate launch --config_file /no.yaml: there is no such file; correct the command, or add it",
        ),
    ],
)
def test_bad_input_is_named(place: Place, words: list[str], variables: dict[str, str], message: str) -> None:
    launch = place.run(*words, variables=variables)
    report = launch.report
    assert (report.ending, report.exit_code) == (Ending.BAD_INPUT, 88)
    assert message in report.message
    assert message in launch.stderr
    assert "Traceback" not in launch.stderr


def test_a_program_that_cannot_be_started_is_named(place: Place) -> None:
    script = Path(place.script("echo no first line", "train.sh"))
    script.chmod(0o755)
    launch = place.run("./train.sh")
    assert (launch.report.ending, launch.exit_code) == (Ending.BAD_INPUT, 88)
    assert (
        launch.report.message == "./train.sh cannot be started: Exec format error; correct the command or the program"
    )
    assert "Traceback" not in launch.stderr


@pytest.mark.parametrize(
    ("words", "variables", "is_bad_command"),
    [
        (["python", "train.py"], {}, True),
        (["no-such-program"], {}, True),
        (["accelerate", "launch", "--config_file", "no.yaml", "-m", "trains"], {}, True),
        (["python", "-c", ""], TO_DISK, None),
        (["python", "-c", "import missing"], {}, None),
    ],
)
def test_a_command_that_no_plan_mends_is_reported_as_such(
    place: Place, words: list[str], variables: dict[str, str], is_bad_command: bool | None
) -> None:
    assert place.run(*words, variables=variables).report.bad_command is is_bad_command


def test_an_argument_that_a_parser_does_not_know_is_a_bad_command(tmp_path: Path) -> None:
    install(tmp_path / "runner")  # the real hooks write the rank's report
    place = Place(tmp_path / "runner", tmp_path)
    for parse, words in (
        ("import argparse; argparse.ArgumentParser().parse_args()", "error: unrecognized arguments: --lrate"),
        (
            "from transformers import HfArgumentParser, TrainingArguments as Arguments; "
            "HfArgumentParser(Arguments).parse_args_into_dataclasses()",
            "ValueError: Some specified arguments are not used by the HfArgumentParser: ['--lrate']",
        ),
    ):
        gpu = {"MEMTUNE_GPU_MEMORY_BYTES": "64000000"}
        report = place.run("python", place.script(parse), "--lrate", variables=gpu).report
        assert (report.ending, report.bad_command) == (Ending.ERROR, True)
        assert words in report.message


def test_a_configuration_that_accelerate_cannot_read_is_named(tmp_path: Path) -> None:
    install(tmp_path / "runner")  # the real hooks: accelerate is imported under them
    place = Place(tmp_path / "runner", tmp_path)
    config, script = (
        place.script("distributed_type: 'NO'\nno_such_option: 1\n", "own.yaml"),
        place.script("print('trains')"),
    )
    launch = place.run("accelerate", "launch", "--config_file", config, script)
    assert (launch.report.ending, launch.exit_code) == (Ending.BAD_INPUT, 88), launch.stderr
    assert launch.report.message.startswith(f"accelerate launch --config_file {config}: accelerate cannot read it: ")
    assert "no_such_option" in launch.report.message
    assert "Traceback" not in launch.stderr
    assert "trains" not in launch.stdout


def test_a_missing_or_old_torch_is_named(place: Place) -> None:
    for version, message in [(None, "has no torch"), ("2.5.1+cu124", "torch 2.5.1+cu124")]:
        packages = place.directory / str(version)
        packages.mkdir()
        if version:
            (packages / "torch").mkdir()
            (packages / "torch" / "__init__.py").write_text("")
            (packages / f"torch-{version}.dist-info").mkdir()
            (packages / f"torch-{version}.dist-info" / "METADATA").write_text(f"Name: torch\nVersion: {version}\n")
        # -S hides this environment's packages, as in a bare image.
        launch = place.run(sys.executable, "-S", "-c", "", variables={"PYTHONPATH": str(packages)})
        assert launch.report.ending is Ending.BAD_INPUT
        assert message in launch.report.message


def test_an_unknown_subcommand_prints_the_usage(place: Place) -> None:
    for words in ([], ["launch", "train.py"], ["install"]):
        command = [sys.executable, "-m", "memtune_runner", *words]
        done = subprocess.run(command, env={"PYTHONPATH": str(place.runner)}, capture_output=True, text=True)
        assert done.returncode == 2
        assert done.stderr.startswith("usage: python -m memtune_runner launch -- COMMAND")
