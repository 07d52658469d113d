"""The argument parser of all subcommands, with the options of each."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import memtune
from memtune.gpus.gpu import GPUS
from memtune.planning.cost import read_prices
from memtune.units import parse_bytes
from memtune.wire.trace import NUMERICS
from memtune_cli.input import emulated_job, tracing

_EXIT_CODES = """\
exit codes:
  0  a plan fits (plan), the plan fits (estimate), the job succeeded (run, watch), or the command succeeded
  1  no plan is sure to fit (plan), the plan is not sure to fit (estimate), or the job failed (run, watch)
  2  bad input, or an error of the cluster: the message says where and what to do
  130  the command was interrupted; call run or watch again to continue
"""
_EMULATE_EXIT_CODES = """\
exit codes:
  0  the command ran to its end
  1  the command failed
  2  bad input: a command or job that cannot be read, or a command whose Python is not there
  3  no CUDA build of torch in the command's Python, or a checkout of MemTune without a C compiler
  4  a machine that is not Linux on x86_64 or aarch64
  5  a GPU that is not in the table
  6  the command ran out of the emulated GPU's memory
  7  the time limit was reached
  8  the machine has too little memory for the command
  9  a library of the command needs what the emulated GPU does not have
  10  a plan that the job does not allow
  130  the command was interrupted
"""
_PLAN_HELP = "a plan in short form, like bf16-z3-full-mb1x32"
_NAME_HELP = "a MemoryTunedJob of the cluster"

# shtab reads these from an argument's `complete` attribute to complete file and directory names.
_FILES = {"bash": "_shtab_compgen_files", "fish": "(__fish_complete_path (commandline -ct))", "zsh": "_files"}
_DIRECTORIES = {
    "bash": "_shtab_compgen_dirs",
    "fish": "(__fish_complete_directories (commandline -ct))",
    "zsh": "_files -/",
}


class _CommandParser(argparse.ArgumentParser):
    """Refuses options of other commands with its own usage; argparse would show that of `memtune`."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            # An unknown option's value may have taken the place of the job's file, which is then left over.
            options = [each for each in unknown if each.startswith("-")]
            self.error(f"unrecognized arguments: {' '.join(options or unknown)}")
        return parsed, unknown


def build_parser() -> argparse.ArgumentParser:
    """Build the parser."""
    # Called as a kubectl plugin, the usage line shows `kubectl memtune`.
    is_plugin = Path(sys.argv[0]).name == "kubectl-memtune"
    parser = argparse.ArgumentParser(
        prog="kubectl memtune" if is_plugin else "memtune",
        description="Says which training plans fit a GPU, which is fastest, and where every gigabyte goes.",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"memtune {memtune.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_CommandParser)
    plan = _file_command(commands, "plan", "rank all plans that the job allows, and show the best")
    _add_format(plan)
    _add_gpu(plan, f"a GPU in place of the job's own, or several to compare, as A,B,C: {', '.join(GPUS)}")
    plan.add_argument(
        "--gpu-hour-price", type=_prices, metavar="NAME=DOLLARS",
        help="price of a GPU hour (default: the job's gpuHourPrice); for several products A=2.5,B=1",
    )  # fmt: skip
    plan.add_argument("--top", type=_positive, metavar="N", help="rows of the table (default: 10)")
    _add_plot(plan)
    plan.add_argument(
        "--timeline", type=_page_or_picture, metavar="FILE",
        help="draw one step of the chosen plan, replayed on a trace of the model, into a .html, .png or .svg file",
    )  # fmt: skip
    trace = plan.add_argument(
        "--trace", metavar="TRACE", help="a file that memtune trace wrote (default: the job's model is traced)"
    )
    trace.complete = _FILES  # type: ignore[attr-defined]
    estimate = _job_command(commands, "estimate", "show one plan in detail")
    estimate.add_argument("--plan", required=True, metavar="PLAN", help=_PLAN_HELP)
    _add_plot(estimate)
    explain = _job_command(commands, "explain", "show every formula with its numbers filled in")
    explain.add_argument("--plan", metavar="PLAN", help=f"{_PLAN_HELP} (default: the one that plan chooses)")
    run = _file_command(
        commands, "run", "train on this machine: predict, probe, launch, and recover from out-of-memory"
    )
    _add_state(run, "where the job's state and logs are (default: .memtune/NAME)")
    status = _named_command(commands, "status", "show a job's progress and its conditions")
    _add_format(status)
    watch = _command(commands, "watch", "follow a job on a cluster, live, until it ends")
    watch.add_argument("name", metavar="NAME", help=_NAME_HELP)
    _add_cluster(watch)
    report = _named_command(commands, "report", "write a report of a job as one HTML page")
    output = report.add_argument(
        "-o", "--output", metavar="FILE", default="report.html", help="the page to write (default: report.html)"
    )
    output.complete = _FILES  # type: ignore[attr-defined]
    report.add_argument("--prometheus", metavar="URL", help="a Prometheus server that has the memory over time")
    study = _named_command(commands, "study", "write the probes of a job as an Optuna study, for Optuna's tools")
    storage = study.add_argument(
        "--storage", required=True, metavar="URL", help="a database like sqlite:///study.db, or a journal file"
    )
    storage.complete = _FILES  # type: ignore[attr-defined]
    study.add_argument("--study", metavar="NAME", help="the study's name (default: the job's, with its namespace)")
    logs = _named_command(commands, "logs", "show the logs of a job's ranks, the failing one first")
    logs.add_argument("-f", "--follow", action="store_true", help="go on until the run ends")
    logs.add_argument("--run", metavar="RUN", help="a run like probe-2 or train-1 (default: the newest with logs)")
    logs.add_argument("--rank", type=_natural, metavar="N", help="one rank alone")
    _trace_command(commands)
    _timeline_command(commands)
    _emulate_command(commands)
    completion = commands.add_parser("completion", help="print a shell's completion script")
    completion.add_argument("shell", choices=("bash", "fish", "zsh"))
    return parser


def _trace_command(commands: argparse._SubParsersAction[_CommandParser]) -> None:
    trace = _command(commands, "trace", "trace a model of yours without a GPU, for timeline")
    trace.add_argument(
        "factory",
        metavar="MODULE:FACTORY",
        help="a function that returns a model, (model, batch) or (model, batch, loss); or a Hugging Face config.json",
    )
    trace.add_argument(
        "--batch", type=_positive, default=tracing.BATCH, metavar="ROWS", help="rows of a micro-batch (default: 2)"
    )
    trace.add_argument("--sequence-length", type=_positive, default=2048, metavar="N", help="tokens a row (2048)")
    trace.add_argument(
        "--numerics", nargs="+", choices=NUMERICS, default=list(NUMERICS), help="numerics to trace (all)"
    )
    trace.add_argument("--memory", type=_quantity, default=tracing.MEMORY, help="limit of host memory (4Gi)")
    trace.add_argument(
        "--time-limit",
        type=_positive,
        default=tracing.TIME_LIMIT_SECONDS,
        metavar="SECONDS",
        help="time limit (300)",
    )
    trace.add_argument(
        "--output", type=Path, metavar="FILE", help="the file to write (default: MODULE.FACTORY.trace.json)"
    )


def _timeline_command(commands: argparse._SubParsersAction[_CommandParser]) -> None:
    timeline = _command(commands, "timeline", "show the memory of one step of a traced model under a plan")
    trace = timeline.add_argument("trace", metavar="TRACE", help="a file that memtune trace wrote")
    trace.complete = _FILES  # type: ignore[attr-defined]
    timeline.add_argument("--plan", required=True, metavar="PLAN", help=_PLAN_HELP)
    timeline.add_argument("--nodes", type=_positive, default=1, metavar="N", help="nodes of the job (1)")
    timeline.add_argument("--gpus-per-node", type=_positive, default=1, metavar="N", help="GPUs of a node (1)")
    _add_format(timeline)
    timeline.add_argument(
        "--plot", type=_page_or_picture, metavar="FILE", help="draw the step into a .png, .svg or .html file"
    )


def _emulate_command(commands: argparse._SubParsersAction[_CommandParser]) -> None:
    emulate = _command(commands, "emulate", "run a training command on an emulated GPU, and show the memory it takes")
    emulate.epilog = _EMULATE_EXIT_CODES
    _add_gpu(emulate, f"the GPU to emulate (default: the job's, or {emulated_job.GPU}): {', '.join(GPUS)}")
    emulate.add_argument(
        "--ranks", type=_positive, metavar="N", help="run as a rank of N (default: as the launcher says)"
    )
    emulate.add_argument("--rank", type=_natural, metavar="R", help="for a command: run as rank R (0)")
    emulate.add_argument(
        "--gpus",
        type=_positive,
        metavar="N",
        help="for a command: GPUs that its process sees (one for each rank of a node)",
    )
    limit = emulated_job.TIME_LIMIT_SECONDS
    emulate.add_argument("--time-limit", type=_positive, default=limit, metavar="SECONDS", help=f"time limit ({limit})")
    emulate.add_argument("--snapshot", metavar="FILE", help="write torch's memory snapshot, for pytorch.org/memory_viz")
    plans = emulate.add_mutually_exclusive_group()
    plans.add_argument(
        "--plan", metavar="PLAN", help="for a job: one plan that it allows (default: the first that ranks)"
    )
    plans.add_argument("--top", type=_positive, metavar="N", help="for a job: each of the N plans that rank first")
    emulate.add_argument(
        "--parallel", type=_positive, metavar="N",
        help="for a job: plans at a time (default: as many as processors and host memory allow)",
    )  # fmt: skip
    emulate.add_argument(
        "--timeline", type=_page_or_picture, metavar="FILE",
        help="for a job: draw a step of its first plan into a .html, .png or .svg file",
    )  # fmt: skip
    _add_format(emulate)
    emulate.add_argument(
        "words", nargs="+", metavar="JOB.yaml | COMMAND",
        help="a job, whose command is run; or a command after --, like torchrun --nproc-per-node 8 train.py",
    )  # fmt: skip


def _job_command(
    commands: argparse._SubParsersAction[_CommandParser], name: str, purpose: str
) -> argparse.ArgumentParser:
    command = _file_command(commands, name, purpose)
    _add_format(command)
    _add_gpu(command, f"a GPU in place of the job's own: {', '.join(GPUS)}")
    return command


def _add_gpu(command: argparse.ArgumentParser, purpose: str) -> None:
    gpu = command.add_argument("--gpu", metavar="NAME", help=purpose)
    # No argparse choices: our own message is better. memtune_cli.commands.completion defines the bash function.
    names = " ".join(GPUS)
    gpu.complete = {"bash": "_memtune_gpus", "fish": names, "zsh": f"({names})"}  # type: ignore[attr-defined]


def _file_command(
    commands: argparse._SubParsersAction[_CommandParser], name: str, purpose: str
) -> argparse.ArgumentParser:
    command = _command(commands, name, purpose)
    job = command.add_argument("job", metavar="JOB.yaml", help="a MemoryTunedJob as YAML or JSON; - is standard input")
    job.complete = _FILES  # type: ignore[attr-defined]
    return command


def _named_command(
    commands: argparse._SubParsersAction[_CommandParser], name: str, purpose: str
) -> argparse.ArgumentParser:
    command = _command(commands, name, purpose)
    command.add_argument("name", metavar="NAME", nargs="?", help=_NAME_HELP)
    _add_state(command, "the state of a job of memtune run, in place of NAME")
    _add_cluster(command)
    return command


def _add_state(command: argparse.ArgumentParser, purpose: str) -> None:
    state = command.add_argument("--state", metavar="DIR", help=purpose)
    state.complete = _DIRECTORIES  # type: ignore[attr-defined]


def _add_cluster(command: argparse.ArgumentParser) -> None:
    command.add_argument("-n", "--namespace", metavar="NAMESPACE", help="the job's namespace (default: the context's)")
    command.add_argument("--context", metavar="CONTEXT", help="the kubeconfig's context (default: its current one)")
    kubeconfig = command.add_argument(
        "--kubeconfig", metavar="FILE", help="the kubeconfig (default: $KUBECONFIG, or ~/.kube/config)"
    )
    kubeconfig.complete = _FILES  # type: ignore[attr-defined]


def _command(commands: argparse._SubParsersAction[_CommandParser], name: str, purpose: str) -> argparse.ArgumentParser:
    return commands.add_parser(
        name,
        help=purpose,
        description=f"{purpose[0].upper()}{purpose[1:]}.",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _add_format(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--format", choices=("table", "json", "yaml"), default="table", help="what to print (default: table)"
    )


def _add_plot(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--plot", type=_picture, metavar="FILE", help="draw the memory into a .png or .svg file; needs matplotlib"
    )


def _positive(text: str) -> int:
    return _whole(text, 1)


def _natural(text: str) -> int:
    return _whole(text, 0)


def _whole(text: str, least: int) -> int:
    if not text.removeprefix("-").isdecimal():
        raise argparse.ArgumentTypeError(f"{text} is not a whole number; give one from {least}")
    if int(text) < least:
        raise argparse.ArgumentTypeError(f"{text} is too small; give at least {least}")
    return int(text)


def _picture(text: str) -> Path:
    path = Path(text)
    if path.suffix not in (".png", ".svg"):
        raise argparse.ArgumentTypeError(f"{text} has no picture's name; end it with .png or .svg")
    return path


def _prices(text: str) -> dict[str, float]:
    try:
        return read_prices(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _page_or_picture(text: str) -> Path:
    return Path(text) if text.endswith(".html") else _picture(text)


def _quantity(text: str) -> str:
    try:
        parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text
