"""Queries Prometheus for a job's memory over time."""

from __future__ import annotations

import http.client
import json
import math
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, NamedTuple

from memtune_cli.errors import InputError

_SECONDS = 20.0
_MOST_POINTS = 400
_LEAST_STEP_SECONDS = 5.0
_LARGEST_ANSWER_BYTES = 64 * 1024**2
_SCHEMES = ("http", "https")


class Series(NamedTuple):
    """One time series: its label, and values by seconds since the epoch."""

    name: str
    points: tuple[tuple[float, float], ...]


def device_memory(url: str, namespace: str, job: str, begin: float, end: float) -> list[Series]:
    """The memory in use on the fullest GPU of each attempt."""
    labels = f"{{mtj_namespace={json.dumps(namespace)}, mtj={json.dumps(job)}}}"
    reserved = f"memtune_hbm_reserved_bytes{labels}"
    # On a shared GPU, the memory outside the allocator cannot be attributed.
    query = f"max by (run) ({reserved} + (memtune_hbm_non_torch_bytes{labels} or {reserved} * 0))"
    step = max(_LEAST_STEP_SECONDS, (end - begin) / _MOST_POINTS)
    answer = _asked(url, {"query": query, "start": f"{begin:.0f}", "end": f"{end:.0f}", "step": f"{step:.0f}"})
    try:
        return [_series(each) for each in answer["data"]["result"]]
    except (KeyError, TypeError, ValueError):
        raise InputError(f"--prometheus: the server at {url} is no Prometheus") from None


def _asked(url: str, parameters: dict[str, str]) -> Any:
    if urllib.parse.urlsplit(url).scheme not in _SCHEMES:
        raise InputError(f"--prometheus: {url} is no address; write it like http://prometheus.monitoring:9090")
    address = f"{url.rstrip('/')}/api/v1/query_range?{urllib.parse.urlencode(parameters)}"
    try:
        with urllib.request.urlopen(address, timeout=_SECONDS) as response:
            return json.loads(response.read(_LARGEST_ANSWER_BYTES))
    except urllib.error.HTTPError as error:
        raise InputError(f"--prometheus: {url} refused the query: {error.code} {error.reason}") from None
    except (urllib.error.URLError, OSError) as error:
        raise InputError(f"--prometheus: no answer from {url}: {getattr(error, 'reason', error)}") from None
    except (http.client.HTTPException, ValueError):
        return None


def _series(result: dict[str, Any]) -> Series:
    points = ((float(at), float(value)) for at, value in result["values"])
    finite = tuple((at, value) for at, value in points if math.isfinite(value))
    return Series(str(result["metric"].get("run", "")), finite)
