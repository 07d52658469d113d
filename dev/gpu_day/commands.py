"""The three commands for the machine with the GPU; each runs its most informative parts first, within a time limit.

Results so far are always in three kinds of files: ``N.jsonl`` with the outcome of every part, ``N.log`` with its
output, and the two of bench/gpu_results.py. None is ever replaced, so that no moment has a ninth file.
"""

from __future__ import annotations

import platform
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from dev.gpu_day.outcomes import WELL, Part, Run, tell
from dev.gpu_day.places import PREPARED, PYTHONS, ROOT, SITE, WHEELS, variables
from dev.gpu_day.wheels import unpack, version_of

_REHEARSAL_TIMES = 10  # an emulated GPU computes on the CPU what it computes at all, and tests run beside it
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

# Packages that a part needs to run at all. A pair, test or script whose library is missing fails alone, and says so.
_TORCH = ("torch",)
_OF_PYTEST = (*_TORCH, "pytest", "pluggy", "iniconfig")
_BEFORE_3_11 = ("exceptiongroup", "tomli")
_OF_A_JOB = (*_OF_PYTEST, "pydantic", "pydantic-core", "optuna", "pyyaml")

_MACHINE = Part("machine", ("dev/gpu_day/machine.py",), 60, tells=True, expected=15)
# A rehearsal measures one pair in each command, and runs some of the scripts. Tests of what an emulated GPU does not
# compute skip themselves, with the reason.
_SOME_SCRIPTS = (
    "-k",
    "script_follows and (env or ddp-sel or z1 or z2-none or z3 or fp16 or fsdp-full-mb4x2) and not oopt",
)


def _measuring(
    name: str, words: tuple[str, ...], seconds: float, expected: float, rehearsed: tuple[str, ...] = ()
) -> Part:
    return Part(name, words, seconds, rehearsed, tells=True, expected=expected, needs=_TORCH)


def _testing(
    name: str,
    file: str,
    seconds: float,
    expected: float,
    rehearsed: tuple[str, ...] = (),
    words: tuple[str, ...] = (),
) -> Part:
    path = f"tests/gpu/test_gpu_{file}.py"
    return Part(name, (*_TESTS, path, *words), seconds, rehearsed, expected=expected, needs=_OF_PYTEST)


COMMANDS = {
    "1": (
        _measuring("constants", ("dev/gpu_day/constants.py",), 90, 10),
        _testing("counters and out-of-memory", "memory", 150, 60),
        _measuring("small pairs", (*_PAIRS, "--model", "0.1B", "--model", "0.5B"), 200, 160, ("--most", "1")),
        _measuring("steps without a recording", (*_ONE, "none"), 60, 15),
        _measuring("steps with recorded events", (*_ONE, "events"), 60, 15),
        _measuring("steps with recorded stacks", (*_ONE, "stacks"), 60, 15),
    ),
    "2": (_measuring("pairs", _PAIRS, 540, 450, ("--model", "0.1B", "--most", "1")),),
    "3": (
        _testing("a job from its first probe to its end", "run", 150, 60)._replace(needs=_OF_A_JOB),
        _testing("scripts under their plans", "scripts", 300, 190, _SOME_SCRIPTS),
        _testing("engine, resume", "engine", 200, 60)._replace(several=True),
        _testing("offloads", "offload", 120, 90),
        _testing("allocator", "plans", 120, 40, words=("-k", "allocator_model")),
    ),
}


def run(name: str, results: Path, seconds: float, is_rehearsal: bool = False) -> int:
    """Run the parts of a command within its time; return 1 if one failed or did not start.

    Return 2, without running anything, if there is no GPU, or if a package is missing that every part needs. A part
    that needs another is left out.
    """
    deadline = time.monotonic() + seconds
    try:
        site, refused = unpack(ROOT / WHEELS, ROOT / SITE)
        for sentence in refused:
            tell(f"gpu-day {name}: {sentence}")
        missing = {part: _missing(part, site) for part in COMMANDS[name]}
        if refusal := _refusal(name, missing):
            _say(refusal)
            code = 2
        else:
            code = _run(name, results.absolute(), deadline, site, is_rehearsal, missing)
        if code == 2:
            # Unpacked files would travel to the machine on which the command can run.
            shutil.rmtree(ROOT / SITE, ignore_errors=True)
        return code
    except OSError as error:
        _say(f"results cannot be written: {error}; name another directory by --results")
        return 2


def _say(sentence: str) -> None:
    print(f"gpu-day: {sentence}", file=sys.stderr)


def _missing(part: Part, site: Path) -> list[str]:
    """The packages that a part needs and that are not there.

    They are looked for and not imported, since that takes seconds of a GPU's time.
    """
    needs = [*part.needs, *(_BEFORE_3_11 if "pytest" in part.needs and sys.version_info < (3, 11) else ())]
    return [each for each in needs if version_of(each, [str(site), *sys.path]) is None]


def _refusal(name: str, missing: Mapping[Part, Sequence[str]]) -> str | None:
    """Why no part of a command can run with this Python, and what to do."""
    own = f"Python {platform.python_version()} at {sys.executable}"
    another = f"name another Python, as in PYTHON dev/gpu-day {name}"
    if f"{sys.version_info[0]}.{sys.version_info[1]}" not in PYTHONS:
        needed = f"Python {PYTHONS[0]} to {PYTHONS[-1]} with a CUDA build of torch"
        return f"a GPU day needs {needed}, and this is {own}; {another}"
    if not all(missing.values()):
        return None
    every = list(dict.fromkeys(each for packages in missing.values() for each in packages))
    lacking = [each for each in every if all(each in packages for packages in missing.values())] or every
    problem = f"command {name} needs {', '.join(lacking)}, which neither {own} nor {PREPARED} has"
    if "torch" in lacking:  # no wheel brings it
        return f"{problem}; {another}"
    return f"{problem}; run dev/gpu-day prepare where there is a network and bring {PREPARED} along, or {another}"


def _run(
    name: str,
    results: Path,
    deadline: float,
    site: Path,
    is_rehearsal: bool,
    missing: Mapping[Part, Sequence[str]],
) -> int:
    results.mkdir(parents=True, exist_ok=True)
    (results / f"{name}.log").touch()  # fails early if the directory is not writable
    kept = Run(name, results, variables(site), is_rehearsal)
    if not kept.begin(_MACHINE, min(_MACHINE.seconds, deadline - time.monotonic())):
        return 2
    for part, packages in missing.items():
        if packages:
            kept.leave_out(part, f"needs {', '.join(packages)}")
    parts = [part for part, packages in missing.items() if not packages]
    if is_rehearsal:
        parts = [each.given(_REHEARSAL_TIMES) for each in parts]
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
    """The parts of a command. The sums of their expected and of their least times are within its time."""
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
