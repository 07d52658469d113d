"""The chart's dashboards and the Prometheus that answers them, as tests ask it."""

from __future__ import annotations

import json
import math
import re
import time
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from dev.cluster.monitoring import prometheus

_DASHBOARDS = Path(__file__).resolve().parents[3] / "charts" / "memtune" / "dashboards"
NAMES = sorted(file.stem for file in _DASHBOARDS.glob("*.json"))
_RANGE_SECONDS = 600
_STEP_SECONDS = 5
# What a panel draws instead of nothing; taken for an answer, it would hide that there is none.
_INSTEAD = re.compile(r" or (label_replace\()?vector\(0\).*$")
# A look that breaks off is no part of a scenario, and an attempt that continues may be over before 15 s are.
_MAY_BE_NOTHING = ("memtune_reconcile_errors_total", "memtune_job_continues")


def ask(what: str, **parameters: object) -> Any:
    """Prometheus's answer."""
    with urllib.request.urlopen(f"{prometheus.URL}/api/v1/{what}?{urlencode(parameters)}", timeout=60) as answer:
        return json.load(answer)["data"]


def silent_queries(namespace: str) -> list[str]:
    """The queries of panels that have no number now, with the variables set to this namespace and all that is in it."""
    return [
        f"{name}: {panel['title']}: {query}"
        for name in NAMES
        for panel in json.loads((_DASHBOARDS / f"{name}.json").read_text())["panels"]
        for target in panel["targets"]
        if not _has_numbers(query := _filled_in(asked(target["expr"]), namespace), target["instant"])
    ]


def asked(query: str) -> str:
    """The query of a panel without the zero that it draws instead of nothing, unless nothing is an answer."""
    return query if any(name in query for name in _MAY_BE_NOTHING) else _INSTEAD.sub("", query)


def _filled_in(query: str, namespace: str) -> str:
    values = {"$namespace": namespace, "$job": ".*", "$run": ".*", "$__range": f"{_RANGE_SECONDS}s"}
    for name, value in values.items():
        query = query.replace(name, value)
    return query


def _has_numbers(query: str, is_instant: bool) -> bool:
    now = time.time()
    if is_instant:
        found = [[series["value"]] for series in ask("query", query=query, time=now)["result"]]
    else:
        span = {"start": now - _RANGE_SECONDS, "end": now, "step": _STEP_SECONDS}
        found = [series["values"] for series in ask("query_range", query=query, **span)["result"]]
    return any(math.isfinite(float(text)) for values in found for _, text in values)
