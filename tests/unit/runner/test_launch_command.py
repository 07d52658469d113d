"""The command lines of every launcher that MemTune replaces, and what is left of them."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st
from malformed_texts import texts

from memtune_runner.command.command import Command, CommandError, Kind, parse

SCRIPT, MODULE, CODE, PROGRAM = Kind.SCRIPT, Kind.MODULE, Kind.CODE, Kind.PROGRAM
TRAIN = ("--lr", "1e-4", "--", "-m")

PYTHON = {
    "python train.py": Command(SCRIPT, "train.py", interpreter=("python",)),
    "python train.py --lr 1e-4 -- -m": Command(SCRIPT, "train.py", TRAIN, ("python",)),
    "/opt/py/bin/python3.12 -u ./train.py": Command(SCRIPT, "./train.py", (), ("/opt/py/bin/python3.12", "-u")),
    "python -X dev -Wignore -OB train.py": Command(SCRIPT, "train.py", (), ("python", "-X", "dev", "-Wignore", "-OB")),
    "python --check-hash-based-pycs always train.py": Command(
        SCRIPT, "train.py", (), ("python", "--check-hash-based-pycs", "always")
    ),
    "python -m pkg.train -m x": Command(MODULE, "pkg.train", ("-m", "x"), ("python",)),
    "python -W error -um pkg.train": Command(MODULE, "pkg.train", (), ("python", "-W", "error", "-u")),
    "python -mpkg x": Command(MODULE, "pkg", ("x",), ("python",)),
    "python -c 'import x' y": Command(CODE, "import x", ("y",), ("python",)),
    "python -Xdev -c pass": Command(CODE, "pass", (), ("python", "-Xdev")),
}
LAUNCHERS = {
    "torchrun train.py": Command(SCRIPT, "train.py", launcher="torchrun"),
    "/opt/bin/torchrun --standalone --nproc_per_node=8 --nnodes 2 train.py --lr 1e-4 -- -m": Command(
        SCRIPT, "train.py", TRAIN, launcher="/opt/bin/torchrun"
    ),
    "torchrun --nproc 8 --stand -m pkg.train --module": Command(
        MODULE, "pkg.train", ("--module",), launcher="torchrun"
    ),
    "torchrun -t3 -r 1:3 --rdzv-endpoint host:1 --no-python ./train.sh a": Command(
        PROGRAM, "./train.sh", ("a",), launcher="torchrun"
    ),
    "torchrun --nnodes=1 -- train.py": Command(SCRIPT, "train.py", launcher="torchrun"),
    "python -u -m torch.distributed.run --nnodes 2 train.py x": Command(
        SCRIPT, "train.py", ("x",), ("python", "-u"), launcher="torch.distributed.run"
    ),
    "python /usr/bin/torchrun --nproc-per-node gpu train.py": Command(
        SCRIPT, "train.py", (), ("python",), launcher="/usr/bin/torchrun"
    ),
    "python -m torch.distributed.launch --nproc_per_node 2 train.py x": Command(
        SCRIPT, "train.py", ("x",), ("python",), launcher="torch.distributed.launch", local_rank="--local-rank"
    ),
    "python -m torch.distributed.launch --use_env train.py": Command(
        SCRIPT, "train.py", (), ("python",), launcher="torch.distributed.launch"
    ),
    "deepspeed --num_gpus 8 --master_port=1 train.py --deepspeed ds.json": Command(
        SCRIPT, "train.py", ("--deepspeed", "ds.json"), launcher="deepspeed", local_rank="--local_rank"
    ),
    "deepspeed -H hosts -i host:0,1 --force_multi --no_local_rank --module pkg.train": Command(
        MODULE, "pkg.train", launcher="deepspeed"
    ),
    "accelerate launch train.py": Command(SCRIPT, "train.py", launcher="accelerate"),
    "accelerate-launch --mixed_precision bf16 -m pkg x": Command(
        MODULE, "pkg", ("x",), launcher="accelerate-launch", accelerate_options=("--mixed_precision", "bf16", "-m")
    ),
    "accelerate launch --use-fsdp --fsdp_offload_params true --num_processes=8 train.py": Command(
        SCRIPT,
        "train.py",
        launcher="accelerate",
        accelerate_options=("--use-fsdp", "--fsdp_offload_params", "true", "--num_processes=8"),
    ),
    "python -m accelerate.commands.launch --multi_gpu train.py": Command(
        SCRIPT,
        "train.py",
        (),
        ("python",),
        launcher="accelerate.commands.launch",
        accelerate_options=("--multi_gpu",),
    ),
}
OTHERS = [
    "bash train.sh",
    "sh -c 'python train.py'",
    "env A=1 python train.py",
    "uv run train.py",
    "./train.py",
    "accelerate config",
    "accelerate-estimate-memory x",
    "python",
    "python -",
    "python -V",
    "python --version train.py",
    "python-config x",
    "mytorchrun train.py",
]


@pytest.mark.parametrize(("line", "command"), [*PYTHON.items(), *LAUNCHERS.items()], ids=[*PYTHON, *LAUNCHERS])
def test_a_known_command_line_is_read(line: str, command: Command) -> None:
    assert parse(shlex.split(line)) == command


@pytest.mark.parametrize("line", OTHERS)
def test_any_other_command_is_kept_as_it_is(line: str) -> None:
    first, *rest = shlex.split(line)
    assert parse([first, *rest]) == Command(PROGRAM, first, tuple(rest))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "no command after"),
        ("python -m", "add the module"),
        ("python -u -c", "add the code"),
        ("torchrun", "torchrun names no script"),
        ("torchrun --nnodes 2", "names no script"),
        ("deepspeed --num_gpus", "deepspeed names no script"),
        ("accelerate launch --", "accelerate names no script"),
    ],
)
def test_a_command_line_that_runs_nothing_is_refused(line: str, words: str) -> None:
    with pytest.raises(CommandError, match=words):
        parse(shlex.split(line))


@given(st.lists(texts(8), max_size=6))
def test_arguments_of_the_script_are_never_read(arguments: list[str]) -> None:
    for front in (["python", "train.py"], ["torchrun", "--nnodes=2", "train.py"], ["deepspeed", "train.py"]):
        assert parse([*front, *arguments]).arguments == tuple(arguments)


@given(st.lists(st.sampled_from(["python", "torchrun", "-m", "-c", "--", "-u", "-X", "a.py", "--x", "launch", "-"])))
def test_any_command_line_is_read_or_refused(words: list[str]) -> None:
    try:
        command = parse(words)
    except CommandError:
        return
    assert command.target in words
