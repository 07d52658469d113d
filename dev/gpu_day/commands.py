"""The three commands for the machine with the GPU; each runs its most informative parts first, within a time limit.

Results so far are always in three kinds of files: ``N.jsonl`` with the outcome of every part, ``N.log`` with its
output, and the two of bench/gpu_results.py. None is ever replaced, so that no moment has a ninth file.
"""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from dev.gpu_day.outcomes import WELL, Part, Run
from dev.gpu_day.places import PREPARED, PYTHONS, ROOT, SITE, WHEELS, variables
from dev.gpu_day.prepare import NEEDED
from dev.gpu_day.wheels import unpack

_REHEARSAL_TIMES = 3  # an emulated GPU computes on the CPU what it computes at all
# With the machine's pytest: our options are for the locked version.
_PYTEST = (
    "-m",
    "pytest",
    "-p",
    "no:cacheprovider",
    "-o",
    "addopts=--import-mode=importlib",
    "-o",
    "filterwarnings=default",
    "-v",
    "-rA",
)
# Without -c, pytest would take the configuration of a project that the results lie in.
_TESTS = (*_PYTEST, "-c", "pyproject.toml", "--results", "{results}")
_PAIRS = ("bench/gpu_truth.py", "--measure-only", "--fixtures", "--folder", "{results}", "--seconds", "{seconds}")
_ONE = ("bench/gpu_measure.py", "0.5B", "bf16-ddp-none-mb4x1", "1", "--record")

_MACHINE = Part("machine", ("dev/gpu_day/machine.py",), 75, tells=True, expected=15)
# A rehearsal measures one pair in each command, and runs some of the scripts. Tests of what an emulated GPU does not
# compute skip themselves, with the reason.
_SOME_SCRIPTS = (
    "-k",
    "script_follows and (env or ddp-sel or z1 or z2-none or z3 or fp16 or fsdp-full-mb4x2) and not oopt",
)
COMMANDS = {
    "1": (
        Part("constants", ("dev/gpu_day/constants.py",), 90, tells=True, expected=10),
        Part("counters and out-of-memory", (*_TESTS, "tests/gpu/test_gpu_memory.py"), 150, expected=60),
        Part("small pairs", (*_PAIRS, "--model", "0.1B", "--model", "0.5B"), 200, ("--most", "1"), expected=160),
        Part("steps without a recording", (*_ONE, "none"), 60, tells=True, expected=15),
        Part("steps with recorded events", (*_ONE, "events"), 60, tells=True, expected=15),
        Part("steps with recorded stacks", (*_ONE, "stacks"), 60, tells=True, expected=15),
    ),
    "2": (Part("pairs", _PAIRS, 540, ("--model", "0.1B", "--most", "1"), expected=450),),
    "3": (
        Part("a job from its first probe to its end", (*_TESTS, "tests/gpu/test_gpu_run.py"), 150, expected=60),
        Part("scripts under their plans", (*_TESTS, "tests/gpu/test_gpu_scripts.py"), 300, _SOME_SCRIPTS, expected=200),
        Part("engine, resume", (*_TESTS, "tests/gpu/test_gpu_engine.py"), 200, expected=60),
        Part("offloads", (*_TESTS, "tests/gpu/test_gpu_offload.py"), 120, ("-k", "not z3"), expected=90),
        Part("allocator", (*_TESTS, "tests/gpu/test_gpu_plans.py", "-k", "allocator_model"), 120, expected=40),
    ),
}


def run(name: str, results: Path, seconds: float, is_rehearsal: bool = False) -> int:
    """Run the parts of a command within its time; return 1 if one failed or did not start.

    Return 2, without running anything, if there is no GPU, or if a package is missing that the command needs.
    """
    deadline = time.monotonic() + seconds
    try:
        site, refused = unpack(ROOT / WHEELS, ROOT / SITE)
        for sentence in refused:
            print(f"gpu-day {name}: {sentence}", flush=True)
        if lacking := _lacking(name, site):
            _say(f"{lacking}; name another Python, as in PYTHON dev/gpu-day {name}")
            return 2
        return _run(name, results.absolute(), deadline, site, is_rehearsal)
    except OSError as error:
        _say(f"results cannot be written: {error}; name another directory by --results")
        return 2


def _say(sentence: str) -> None:
    print(f"gpu-day: {sentence}", file=sys.stderr)


def _lacking(name: str, site: Path) -> str | None:
    """What this Python lacks to run every part of a command, in words.

    Packages are looked for and not imported, since that takes seconds of a GPU's time.
    """
    own = f"Python {platform.python_version()} at {sys.executable}"
    if f"{sys.version_info[0]}.{sys.version_info[1]}" not in PYTHONS:
        return f"a GPU day needs Python {PYTHONS[0]} to {PYTHONS[-1]} with a CUDA build of torch, and this is {own}"
    path = [str(site), *sys.path]
    missing = [each for each in NEEDED[name] if not any(metadata.distributions(name=each, path=path))]
    return f"command {name} needs {', '.join(missing)}, which neither {own} nor {PREPARED} has" if missing else None


def _run(name: str, results: Path, deadline: float, site: Path, is_rehearsal: bool) -> int:
    results.mkdir(parents=True, exist_ok=True)
    (results / f"{name}.log").touch()  # fails early if the directory is not writable
    kept = Run(name, results, variables(site), is_rehearsal)
    if not kept.begin(_MACHINE, min(_MACHINE.seconds, deadline - time.monotonic())):
        return 2
    parts = [each.given(_REHEARSAL_TIMES) for each in COMMANDS[name]] if is_rehearsal else COMMANDS[name]
    for place in range(len(parts)):
        left = deadline - time.monotonic()
        kept.add(parts[place], left, _limit(parts[place:], left))
    return int(any(each["outcome"] != WELL for each in kept.outcomes))


class Times(NamedTuple):
    """The seconds of a part: what is expected, its limit where earlier parts took that, and where they all hung."""

    name: str
    expected: float
    limit: float
    least: float


def times(name: str, seconds: float) -> list[Times]:
    """The parts of a command. What is expected, and what is left to each at least, are within its time together."""
    parts = COMMANDS[name]
    found = [Times(_MACHINE.name, _MACHINE.expected, _MACHINE.seconds, _MACHINE.seconds)]
    left, least_left = seconds - _MACHINE.expected, seconds - _MACHINE.seconds
    for place, part in enumerate(parts):
        limit, least = (_limit(parts[place:], each) for each in (left, least_left))
        found.append(Times(part.name, part.expected, limit, least))
        left, least_left = left - part.expected, least_left - least
    return found


def _limit(parts: Sequence[Part], left: float) -> float:
    """The time limit of the first of these parts, given the seconds left.

    Limits are for parts that hang, and together exceed a command's time. One that hangs leaves to the others what is
    expected of them. Where less than that is left, each has a share.
    """
    part, *others = parts
    kept = sum(each.kept_seconds for each in others)
    share = left * part.kept_seconds / (part.kept_seconds + kept)
    return min(part.seconds, max(left - kept, share))
