"""Parses job files: finds the job among the YAML documents and refuses YAML that no job can mean, with its line."""

from __future__ import annotations

import json
import re
from collections.abc import Hashable
from itertools import accumulate
from typing import Any

import yaml

from memtune_cli.errors import InputError

_JOB = "MemoryTunedJob"
# YAML includes JSON, so a config.json can be pasted as it is.
_AROUND_CONFIG = (
    "{apiVersion: memtune.dev/v1alpha1, kind: MemoryTunedJob, metadata: {name: my-job}, spec: {"
    "model: {hfConfig: CONFIG}, training: {globalBatchSize: 64, sequenceLength: 4096}, "
    "resources: {gpusPerNode: 8, gpuProduct: h100-80gb}}}"
)
# A job has some hundred values; more after alias expansion is an attack ("billion laughs").
_MOST_VALUES = 100_000
# And about twenty levels; the C loader recurses and would overflow the stack.
_MOST_LEVELS = 100
_KINDS = {str: "text", int: "a number", float: "a number", bool: "a truth value", list: "a list"}


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # the C loader is not always built
    """A YAML loader that rejects duplicate keys, like the API server."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key, _ in node.value:
            if key.tag != "tag:yaml.org,2002:merge" and key.value in seen and isinstance(key.value, str):
                raise yaml.MarkedYAMLError(problem=f"{key.value} is given twice", problem_mark=key.start_mark)
            seen.add(key.value if isinstance(key.value, str) else None)
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return mapping


# YAML 1.1 reads numbers like 1e-06, common in config.json, as text unless they have a dot and a sign.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def job_document(text: str, shown: str) -> dict[str, Any]:
    """The mapping of a single-document file, or the job among several documents."""
    documents = _of_json(text) or _of_yaml(text, shown)
    if len(documents) > 1:
        jobs = [each for each in documents if isinstance(each, dict) and each.get("kind") == _JOB]
        if len(jobs) != 1:
            found = f"{len(documents)} documents, and {len(jobs) or 'none'} of them are jobs"
            raise InputError(f"{shown}: the file holds {found}; give exactly one {_JOB}")
        documents = jobs
    if not documents:
        raise InputError(f"{shown}: the file holds nothing; give exactly one {_JOB}")
    document = documents[0]
    if not isinstance(document, dict):
        kind = _KINDS.get(type(document), f"a {type(document).__name__}")
        raise InputError(f"{shown}: this is {kind}, not a {_JOB}; give a mapping")
    if "model_type" in document and "spec" not in document:
        raise InputError(
            f"{shown}: this is a model's config.json, not a {_JOB}; give a job like this one, with your numbers and "
            f"GPUs, and what the file holds in place of CONFIG: {_AROUND_CONFIG}"
        )
    if _values(document, {}) > _MOST_VALUES:
        raise InputError(f"{shown}: its aliases stand for more than {_MOST_VALUES:,} values, or for themselves")
    return document


def _of_json(text: str) -> list[Any]:
    """The document of a JSON file, which may have keys and escapes that YAML lacks; empty if it should be parsed as
    YAML."""
    if not text.lstrip().startswith("{"):
        return []
    # Brackets inside strings count too; at worst the file is parsed as YAML.
    if max(accumulate((letter in "{[") - (letter in "}]") for letter in text)) > _MOST_LEVELS:
        return []
    try:
        document = json.loads(text, object_pairs_hook=_once)
        json.dumps(document, ensure_ascii=False).encode()  # rejects lone surrogates
        return [document]
    except ValueError:
        return []


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        raise ValueError
    return mapping


def _of_yaml(text: str, shown: str) -> list[Any]:
    try:
        _refuse_depth(text)
        return [document for document in yaml.load_all(text, Loader=_Loader) if document is not None]
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(_not_yaml(error, shown)) from None


def _refuse_depth(text: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _MOST_LEVELS:
            mark: Any = event.start_mark  # the C parser has its own Mark type
            raise yaml.MarkedYAMLError(problem=f"it is nested deeper than {_MOST_LEVELS} levels", problem_mark=mark)


def _values(node: Any, known: dict[int, float]) -> float:
    """The number of values after alias expansion; infinite for a recursive alias."""
    if not isinstance(node, (dict, list)):
        return 1
    if id(node) not in known:
        known[id(node)] = float("inf")
        inner = node.values() if isinstance(node, dict) else node
        known[id(node)] = 1 + sum(_values(value, known) for value in inner)
    return known[id(node)]


def _not_yaml(error: Exception, shown: str) -> str:
    mark = getattr(error, "problem_mark", None)
    where = f"{shown}:{mark.line + 1}:{mark.column + 1}" if mark else shown
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    return f"{where}: this is not YAML that a job can be read from: {problem}; correct that, or give JSON"
