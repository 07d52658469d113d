"""Write the CustomResourceDefinition from the spec types, or with ``--check`` say whether the file is up to date."""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "core"))

from memtune.spec.crd import crd  # noqa: E402 - the core beside this file comes first
from memtune.spec.job import GROUP, PLURAL  # noqa: E402

TARGET = ROOT / "crds" / f"{GROUP}_{PLURAL}.yaml"
HEADER = "# Made by tools/generate_crd.py from core/memtune/spec; do not edit, run `make generate`.\n"


def rendered() -> str:
    """The text of the file as it should be."""
    return HEADER + yaml.safe_dump(crd(), sort_keys=False, width=120, allow_unicode=True)


def main() -> int:
    """Write the file, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the file is out of date")
    check = parser.parse_args().check
    wanted = rendered()
    found = TARGET.read_text() if TARGET.exists() else ""
    if not check:
        TARGET.parent.mkdir(exist_ok=True)
        TARGET.write_text(wanted)
    elif found != wanted:
        name = str(TARGET.relative_to(ROOT))
        sys.stdout.writelines(difflib.unified_diff(found.splitlines(True), wanted.splitlines(True), name, "generated"))
        print(f"{name} is out of date; run `make generate`")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
