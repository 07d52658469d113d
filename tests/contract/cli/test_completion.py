"""The completion scripts in each shell."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from memtune_cli.main import main

# What bash runs when the user presses Tab after the words.
_PRESS_TAB = """
eval "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"
_shtab_memtune memtune "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
echo "${COMPREPLY[*]}"
"""


@pytest.mark.parametrize("shell", ["bash", "fish", "zsh"])
def test_completion_knows_the_subcommands(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(
        name in script
        for name in (
            "plan",
            "estimate",
            "explain",
            "status",
            "watch",
            "report",
            "study",
            "logs",
            "format",
            "table json yaml",
        )
    )


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["pl"], ["plan"]),
        (["plan", "job.yaml", "--gpu", "v100"], ["v100-32gb", "v100-16gb"]),
        (["estimate", "--gpu", "t4"], ["t4-16gb"]),
        (["explain", "job.yaml", "--format", ""], ["table", "json", "yaml"]),
        (["completion", ""], ["bash", "fish", "zsh"]),
        (["wat"], ["watch"]),
        (["status", "llama", "--name"], ["--namespace"]),
        (["status", "--sta"], ["--state"]),
        (
            ["logs", "llama", "--"],
            ["--help", "--state", "--namespace", "--context", "--kubeconfig", "--follow", "--run", "--rank"],
        ),
    ],
)
def test_bash_completes_values(words: list[str], offered: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    main(["completion", "bash"])
    script = capsys.readouterr().out
    ended = subprocess.run(
        ["bash", "-c", _PRESS_TAB, "bash", script, "memtune", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.stdout.split() == offered, ended.stderr


def test_zsh_completes_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    main(["completion", "zsh"])
    assert ":NAME:(b300-270gb b200-180gb " in capsys.readouterr().out


def test_fish_completes_gpus_and_files(capsys: pytest.CaptureFixture[str]) -> None:
    main(["completion", "fish"])
    lines = [line for line in capsys.readouterr().out.splitlines() if "'_shtab_memtune_using plan" in line]
    assert any(" -l gpu " in line and '"b300-270gb b200-180gb ' in line for line in lines)
    assert any("(__fish_complete_path (commandline -ct))" in line for line in lines)
