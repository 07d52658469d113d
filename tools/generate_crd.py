"""Generate the CRD, its chart template and docs/object.md from the spec types; ``--check`` only compares them."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "core")]

from memtune.api.crd import crd  # noqa: E402 - the core beside this file comes first
from memtune.api.job import GROUP, PLURAL  # noqa: E402
from tools.object_page import object_page  # noqa: E402 - lies beside this file

PLAIN = ROOT / "crds" / f"{GROUP}_{PLURAL}.yaml"
# Not in the chart's crds/, which Helm never upgrades.
TEMPLATE = ROOT / "charts" / "memtune" / "templates" / "crd.yaml"
PAGE = ROOT / "docs" / "object.md"
HEADER = "# Made by tools/generate_crd.py from core/memtune/api; do not edit, run `make generate`.\n"
# A server without CEL would ignore these fields, but Helm validates against its schema and rejects the chart.
RULES = re.compile(r"^( +)x-kubernetes-validations:\n(?:\1[- ] .*\n)+", re.MULTILINE)
# Kubernetes 1.25 to 1.27 warn about these fields, which they do not know.
BLAME = re.compile(r"(?:^ +(?:reason: FieldValue|fieldPath: \.).*\n)+", re.MULTILINE)
GUARDED = """{{{{- if semverCompare ">={oldest}-0" $.Capabilities.KubeVersion.Version }}}}
\\g<0>{{{{- end }}}}
"""


def rendered() -> dict[Path, str]:
    """The expected content of each file."""
    definition = crd()
    return {PLAIN: HEADER + _dumped(definition), TEMPLATE: _template(definition), PAGE: object_page(definition)}


def _template(definition: dict[str, Any]) -> str:
    """The CRD as a conditional chart template, kept with all jobs when the chart is uninstalled."""
    kept = {**definition["metadata"], "annotations": {"helm.sh/resource-policy": "keep"}}
    text = _dumped({**definition, "metadata": kept}).replace("{{", '{{ "{{" }}')
    for lines, oldest in ((RULES, "1.25"), (BLAME, "1.28")):
        text = lines.sub(GUARDED.format(oldest=oldest), text)
    return f"{HEADER}{{{{- if .Values.crd.install }}}}\n{text}{{{{- end }}}}\n"


def _dumped(definition: dict[str, Any]) -> str:
    return yaml.dump(definition, Dumper=_Plain, sort_keys=False, width=120, allow_unicode=True)


class _Plain(yaml.SafeDumper):
    """A YAML dumper without anchors and aliases."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _is_up_to_date(target: Path, wanted: str) -> bool:
    found = target.read_text() if target.exists() else ""
    if found == wanted:
        return True
    name = str(target.relative_to(ROOT))
    sys.stdout.writelines(difflib.unified_diff(found.splitlines(True), wanted.splitlines(True), name, "generated"))
    print(f"{name} is out of date; run `make generate`")
    return False


def main() -> int:
    """Write or compare the files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is out of date")
    if parser.parse_args().check:
        found = [_is_up_to_date(target, wanted) for target, wanted in rendered().items()]
        return int(not all(found))
    for target, wanted in rendered().items():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
