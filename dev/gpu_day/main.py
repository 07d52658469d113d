"""The command line of `dev/gpu-day`."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from dev.gpu_day import collect, prepare
from dev.gpu_day.commands import COMMANDS, run, times
from dev.gpu_day.places import MEASURED, PREPARED, PYTHONS, RESULTS, ROOT

_SECONDS = 540.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one step of the GPU day; return 1 if something failed."""
    options = _parser().parse_args(arguments)
    if options.what == "prepare":
        print("\n".join(_table()), flush=True)
        return prepare.prepare(options.python or PYTHONS, options.gpu, options.model)
    if options.what == "collect":
        return collect.collect(options.folder, options.into, options.model)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the part that runs is ended with it
    return run(options.what, options.results, options.seconds, options.rehearsal)


def _table() -> Iterator[str]:
    """The seconds of every part, of which commands are made."""
    yield f"{'command and part':50}{'expected':>10}{'at most':>10}{'if all before it hang':>24}  seconds"
    for name in COMMANDS:
        found = times(name, _SECONDS)
        for each in found:
            yield f"{name}  {each.name:47}{each.expected:10.0f}{each.limit:10.0f}{each.least:24.0f}"
        expected, least = sum(each.expected for each in found), sum(each.least for each in found)
        yield f"{name}  {f'all, of {_SECONDS:.0f}':47}{expected:10.0f}{'':10}{least:24.0f}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dev/gpu-day", description="Half an hour on a GPU. CONTRIBUTING.md has the steps: A GPU day."
    )
    what = parser.add_subparsers(dest="what", required=True)
    before = what.add_parser("prepare", help=f"fetch wheels and predict, in the environment of `make env`: {PREPARED}")
    before.add_argument(
        "--python", action="append", choices=PYTHONS, help="a Python the machine with the GPU may have (all of these)"
    )
    before.add_argument("--gpu", required=True, help="the GPU, as predictions name it, like h100-80gb")
    for name, parts in COMMANDS.items():
        each = what.add_parser(name, help=f"on the machine with the GPU: {', '.join(part.name for part in parts)}")
        each.add_argument(
            "--results", type=Path, default=ROOT / RESULTS, metavar="DIRECTORY", help="where its files go"
        )
        each.add_argument("--seconds", type=float, default=_SECONDS, help="when it ends at the latest (540)")
        each.add_argument(
            "--rehearsal", action="store_true", help="on an emulated GPU: one pair, and some of the scripts"
        )
    after = what.add_parser("collect", help="make tables and fixtures of the results, in the environment of `make env`")
    after.add_argument(
        "folder", type=Path, nargs="?", default=ROOT / RESULTS, help=f"where the results are ({RESULTS})"
    )
    after.add_argument("--into", type=Path, default=ROOT / MEASURED, help=f"where they go ({MEASURED})")
    for each in (before, after):
        each.add_argument("--model", action="append", default=[], help="of the pairs, those of this model alone")
    return parser


if __name__ == "__main__":
    sys.exit(main())
