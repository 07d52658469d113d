"""`memtune completion bash|fish|zsh`: the shell's completion script."""

from __future__ import annotations

import argparse

from memtune.gpus.gpu import GPUS

_BASH = f"""\
_memtune_gpus() {{
  compgen -W "{" ".join(GPUS)}" -- "$1"
}}
"""


def run(arguments: argparse.Namespace) -> int:
    """Print the script for one shell."""
    import shtab

    from memtune_cli.main import build_parser

    print(shtab.complete(build_parser(), shell=arguments.shell, preamble=_BASH if arguments.shell == "bash" else ""))
    return 0
