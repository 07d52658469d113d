"""The CustomResourceDefinition: up to date, structural, described, and consistent with the Python types."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import fast_yaml
import pytest
from api_server_validation import nodes, with_defaults
from crd_schemas import refusals

from memtune.api import load_job
from memtune.api.crd import crd, object_schema
from memtune.api.fields import ASCII
from memtune.api.status import OutOfMemoryPhase, Status, load_status
from memtune.wire.report import Phase

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
Node = dict[str, Any]

# The keywords of apiextensions.k8s.io/v1 JSONSchemaProps that a structural schema may use anywhere.
ALLOWED = {
    "default",
    "description",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "items",
    "maxItems",
    "maxLength",
    "maximum",
    "minItems",
    "minLength",
    "minimum",
    "pattern",
    "properties",
    "required",
    "type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-list-type",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-validations",
}
YAML_1_1_BOOLEANS = {"y", "n", "yes", "no", "on", "off", "true", "false"}


NODES = list(nodes(object_schema()))


def test_the_committed_file_is_generated_from_the_types() -> None:
    command = [sys.executable, str(ROOT / "tools" / "generate_crd.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_file_reads_back_as_the_same_object() -> None:
    assert fast_yaml.load((ROOT / "crds" / "memtune.dev_memorytunedjobs.yaml").read_text()) == crd()


def test_the_crd_has_its_names_and_the_status_subresource() -> None:
    spec = crd()["spec"]
    assert (spec["group"], spec["names"]["kind"], spec["names"]["shortNames"]) == (
        "memtune.dev",
        "MemoryTunedJob",
        ["mtj"],
    )
    (version,) = spec["versions"]
    assert version["name"] == "v1alpha1"
    assert version["subresources"] == {"status": {}}


def test_printer_columns_point_at_fields_of_the_schema() -> None:
    (version,) = crd()["spec"]["versions"]
    columns = {column["name"]: column for column in version["additionalPrinterColumns"]}
    assert list(columns) == ["Phase", "Plan", "HBM", "Tok/s", "OOMs", "Device", "Age"]
    by_path = dict(NODES)
    for name in list(columns)[:-1]:
        assert by_path[columns[name]["jsonPath"]]["type"] == columns[name]["type"]


@pytest.mark.parametrize(("path", "node"), NODES, ids=[path or "root" for path, _ in NODES])
def test_every_node_is_structural(path: str, node: Node) -> None:
    assert set(node) <= ALLOWED
    assert node["type"] in {"object", "array", "string", "integer", "number", "boolean"}
    assert ("items" in node) == (node["type"] == "array")
    assert set(node.get("required", ())) <= set(node.get("properties", ()))
    if path == ".metadata":
        # An API server rejects a CRD that says more about it than its type.
        assert node == {"type": "object"}
    elif not path.endswith("[]"):
        assert node["description"].endswith("."), "every field has a sentence"
    if node["type"] == "object" and path != ".metadata":
        assert ("properties" in node) != node.get("x-kubernetes-preserve-unknown-fields", False)
    if node["type"] in ("integer", "number") and path.startswith(".spec"):
        assert "minimum" in node


def test_only_foreign_objects_keep_unknown_fields() -> None:
    kept = [path for path, node in NODES if node.get("x-kubernetes-preserve-unknown-fields")]
    assert kept == [".spec.model.hfConfig", ".spec.model.factoryArguments", ".spec.template"]


def test_every_list_is_bounded_so_that_rules_have_a_bounded_cost() -> None:
    assert [path for path, node in NODES if node["type"] == "array" and "maxItems" not in node] == []


def test_lists_of_choices_are_sets() -> None:
    for path, node in NODES:
        if node["type"] == "array" and node["items"]["type"] != "object":
            assert node["x-kubernetes-list-type"] == "set", path


def test_rules_refer_to_existing_fields() -> None:
    by_path = dict(NODES)
    rules = [(path, rule) for path, node in NODES for rule in node.get("x-kubernetes-validations", ())]
    assert len(rules) > 15
    for path, rule in rules:
        for name in re.findall(r"(?:self|oldSelf)((?:\.\w+\b(?!\())+)", rule["rule"]):
            assert f"{path}{name}" in by_path, rule
        assert rule["message"]
        assert rule["rule"].count("(") == rule["rule"].count(")")


def test_no_choice_is_a_boolean_to_yaml() -> None:
    written = [(path, node) for path, node in NODES if path.startswith(".spec")]
    choices = {str(choice).lower() for _, node in written for choice in node.get("enum", ())}
    names = {path.rpartition(".")[2].lower() for path, _ in written}
    assert (choices | names) & YAML_1_1_BOOLEANS == set()


def test_python_fills_in_the_defaults_that_the_api_server_does() -> None:
    schema = object_schema()["properties"]["spec"]
    short = {"model": {"hfConfig": {}}, "training": {"globalBatchSize": 8, "sequenceLength": 1}}
    head = {"apiVersion": "memtune.dev/v1alpha1", "kind": "MemoryTunedJob", "metadata": {"name": "a"}}
    job = load_job({**head, "spec": short})
    assert job.spec.model_dump(mode="json", by_alias=True, exclude_none=True) == with_defaults(schema, short)


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_examples_are_valid_by_the_schema_and_by_python(path: Path) -> None:
    *_, data = fast_yaml.load_all(path.read_text())  # other objects that the job needs come first
    assert refusals(object_schema(), data) == []
    assert load_job(data).metadata.name == path.stem


def longest(node: Node) -> Any:
    """Return the longest value that a node of the schema allows."""
    if node["type"] == "object":
        return {name: longest(field) for name, field in node["properties"].items()}
    if node["type"] == "array":
        return [longest(node["items"])] * node["maxItems"]
    if "enum" in node:
        return max(node["enum"], key=len)
    return "2026-01-01T00:00:00.000000Z" if node.get("format") == "date-time" else longest_plain(node)


def longest_plain(node: Node) -> Any:
    if node["type"] != "string":
        return False if node["type"] == "boolean" else node["maximum"]
    # A quotation mark takes two bytes in JSON.
    return ('"' if node["pattern"] == ASCII else "a") * node["maxLength"]


def test_the_status_of_the_longest_job_stays_under_128_kib() -> None:
    status = longest(object_schema()["properties"]["status"])
    # As the API server stores it: without spaces.
    assert len(json.dumps(status, separators=(",", ":"))) < 128 * 1024
    assert load_status(status).model_dump(mode="json", by_alias=True) == status


def test_a_status_can_name_every_phase_that_a_report_can() -> None:
    assert get_args(OutOfMemoryPhase) == ("", *map(str, Phase))


def test_a_status_is_written_in_snake_case_and_read_back() -> None:
    status = Status(phase="Running", gpu_seconds_spent=5)
    written = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    assert written["gpuSecondsSpent"] == 5
    assert load_status(written) == status


def test_the_page_shows_the_default_of_a_block_as_one_writes_it() -> None:
    defaults = [node["default"] for _, node in nodes(object_schema()) if node.get("default") == []]
    defaults += [node["default"] for _, node in nodes(object_schema()) if isinstance(node.get("default"), dict)]
    shown = re.findall(r" \| `([{\[].*?)` \| ", (ROOT / "docs" / "object.md").read_text())
    assert len(shown) > 5
    assert sorted(map(json.dumps, map(fast_yaml.load, shown))) == sorted(map(json.dumps, defaults))
