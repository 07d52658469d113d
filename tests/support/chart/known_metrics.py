"""The metrics and labels that a query may use: those of the golden list, and what the rules record."""

from __future__ import annotations

import json
import re
from pathlib import Path

import fast_yaml

ROOT = Path(__file__).resolve().parents[3]
RULES = ROOT / "charts" / "memtune" / "rules" / "memtune.yaml"
GOLDEN: dict[str, dict[str, list[str]]] = json.loads((ROOT / "tests" / "golden" / "metrics.json").read_text())
# Added to the metrics of attempts when they are scraped.
SCRAPED = {"mtj_namespace", "mtj", "run"}
_NAME = re.compile(r"(?<![\w:])(?:\w+:)?memtune_\w+(?::\w+)?")
_BY = re.compile(r"\bby \(([^)]*)\)")
_MATCHED = re.compile(r"[{,]\s*(\w+)\s*(?:=~|!~|!=|=)")


def recorded() -> set[str]:
    """Return the names that the rules record."""
    groups = fast_yaml.load(RULES.read_text())["groups"]
    return {rule["record"] for group in groups for rule in group["rules"] if "record" in rule}


def known_names() -> set[str]:
    """Every series that exists, including the three of a histogram."""
    names = set(recorded())
    for metrics in GOLDEN.values():
        for name, labels in metrics.items():
            names |= {f"{name}_{part}" for part in ("bucket", "sum", "count")} if "le" in labels else {name}
    return names


def known_labels() -> set[str]:
    """Every label of a metric, as exported or as scraped."""
    told = {label for metrics in GOLDEN.values() for labels in metrics.values() for label in labels}
    return told | SCRAPED | {"namespace", "job", "instance"}


def names_in(query: str) -> set[str]:
    """The metrics in a query."""
    return set(_NAME.findall(query))


def labels_in(query: str) -> set[str]:
    """Return the labels that a query groups or selects by."""
    grouped = {label.strip() for group in _BY.findall(query) for label in group.split(",")}
    return grouped | set(_MATCHED.findall(query))
