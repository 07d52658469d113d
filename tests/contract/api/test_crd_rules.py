"""The CRD's rules as an API server evaluates them: none fails, each is cheap, and they agree with Python.

Every test holds for any CRD of the types; none knows a field by name except those of plans.
"""

from __future__ import annotations

import copy
import itertools
import re
from pathlib import Path
from typing import Any

import fast_yaml
import pytest
from api_server_validation import Broken, broken_rules, nodes, with_defaults
from cel_cost import CRD_LIMIT, RULE_LIMIT, UnboundedError, rule_cost
from crd_schemas import keeps_rules_from_running, refusals
from hypothesis import given, settings
from hypothesis import strategies as st
from job_with_every_field import WHOLE, put
from rule_breaking_specs import BROKEN, GOOD, fixed
from schema_violations import wrong_values
from valid_spec import job, spec

from memtune.api import SpecError, load_job
from memtune.api.immutable_fields import FIXED
from memtune.api.rules import RULES
from memtune.api.status import Status
from memtune.controller.records import changed_fields, fingerprints
from memtune.plans.knobs import Precision, Sharding
from memtune.plans.plan import SHORT_FORM, Plan
from memtune.plans.refusals import contradiction

ROOT = Path(__file__).resolve().parents[3]
Node = dict[str, Any]
SCHEMA: Node = fast_yaml.load((ROOT / "crds" / "memtune.dev_memorytunedjobs.yaml").read_text())["spec"]["versions"][0][
    "schema"
]["openAPIV3Schema"]


SPEC = SCHEMA["properties"]["spec"]
FIELDS = {path: node for path, node in nodes(SPEC) if path and "[]" not in path}
RULES_AT = [(path, node, rule) for path, node in nodes(SCHEMA) for rule in node.get("x-kubernetes-validations", ())]


def refused_by_rules(data: Node, old: Node | None = None) -> list[Broken]:
    """Return the rules that an object breaks, unless it is too wrong for rules to be evaluated."""
    kept = with_defaults(SCHEMA, data)
    if keeps_rules_from_running(SCHEMA, kept):
        return []
    return list(broken_rules(SCHEMA, kept, None if old is None else with_defaults(SCHEMA, old)))


def python_says(data: Node) -> set[str]:
    """Return the paths that Python rejects."""
    try:
        load_job(data)
    except SpecError as error:
        return {problem.path for problem in error.problems}
    return set()


def test_a_default_is_valid_by_the_rules_of_its_own_block_as_it_stands() -> None:
    checked = [(path, node) for path, node in nodes(SCHEMA) if "default" in node]
    assert any("x-kubernetes-validations" in node for _, node in checked)
    for path, node in checked:
        assert refusals(node, node["default"], path) == []
        assert list(broken_rules(node, node["default"], path=path)) == []


def test_a_default_has_all_that_would_be_filled_in() -> None:
    for path, node in nodes(SCHEMA):
        if "default" in node:
            assert with_defaults(node, node["default"]) == node["default"], path


def test_a_rule_blames_an_existing_field() -> None:
    paths = {path for path, _ in nodes(SCHEMA)}
    for path, _, rule in RULES_AT:
        assert path + rule.get("fieldPath", "") in paths, rule
        assert rule.get("fieldPath", ".").startswith("."), rule
        assert rule.get("reason", "FieldValueInvalid") in (
            "FieldValueInvalid",
            "FieldValueRequired",
            "FieldValueForbidden",
        )


def test_a_trace_forbids_each_field_on_lengths() -> None:
    reasons = {
        path + rule.get("fieldPath", ""): rule.get("reason")
        for path, _, rule in RULES_AT
        if "a trace" in rule["message"] and "length" in rule["message"]
    }
    assert reasons == {
        ".spec.training.targetLength": "FieldValueForbidden",
        ".spec.training.varyingLengths": "FieldValueForbidden",
    }


def test_each_rule_is_cheap_and_iterates_over_bounded_fields_only() -> None:
    costs = [rule_cost(rule["rule"], node) for _, node, rule in RULES_AT]
    assert max(costs) < RULE_LIMIT / 10
    assert sum(costs) < CRD_LIMIT / 10


def test_no_rule_is_inside_a_list() -> None:
    """Below a list, the cost of each would be multiplied by the list's items."""
    assert [path for path, _, _ in RULES_AT if "[]" in path] == []


@pytest.mark.parametrize(
    ("rule", "field", "cost"),
    [
        ("self.a.matches('bc')", {"type": "string", "maxLength": 10}, 2 + 4 * 1),
        ("self.a.contains('b') || self.a == 'b'", {"type": "string", "enum": ["abcd"]}, 2 + 1 + 1 + 2 + 1),
        ("'b' in self.a", {"type": "array", "maxItems": 7, "items": {"type": "integer"}}, 2 + 7),
        (
            "self.a.exists(b, b > 1)",
            {"type": "array", "maxItems": 7, "items": {"type": "integer"}},
            2 + 7 * (2 + 2) + 1,
        ),
        ("has(self.a) ? self.a > 1 : !has(self.a)", {"type": "integer"}, 3 + 4),
    ],
)
def test_the_cost_of_a_rule_is_the_sum_of_its_parts(rule: str, field: Node, cost: int) -> None:
    assert rule_cost(rule, {"type": "object", "properties": {"a": field}}) == cost


@pytest.mark.parametrize("rule", ["self.a.matches('b')", "self.a.contains('b')", "int(self.a) > 1"])
def test_an_unbounded_text_cannot_be_iterated_over(rule: str) -> None:
    with pytest.raises(UnboundedError):
        rule_cost(rule, {"type": "object", "properties": {"a": {"type": "string"}}})


def test_a_pattern_means_the_same_to_every_engine() -> None:
    """A class like ``\\s`` is ASCII in Go and Unicode in Rust and Python."""
    for path, node in nodes(SCHEMA):
        if "pattern" in node:
            assert re.fullmatch(r"\^.*\$", node["pattern"]), path
            assert not re.search(r"\\[sSdDwWbBpP]|\(\?", node["pattern"]), path


@pytest.mark.parametrize(("words", "made", "path"), BROKEN, ids=[f"{path}-{words}" for words, _, path in BROKEN])
def test_each_rule_breaks_alone_and_blames_the_same_field_as_python(words: str, made: Node, path: str) -> None:
    broken = refused_by_rules(job(made))
    assert [each.message[: len(words)] for each in broken] == [words]
    assert {each.path for each in broken} == python_says(job(made)) == {path}


@pytest.mark.parametrize("made", GOOD)
def test_a_good_spec_breaks_no_rule(made: Node) -> None:
    assert refusals(SCHEMA, with_defaults(SCHEMA, job(made))) == []
    assert refused_by_rules(job(made)) == []


def test_every_rule_is_broken_by_an_example() -> None:
    assert {rule.message for rule in RULES} == {
        each.message for _, made, _ in BROKEN for each in refused_by_rules(job(made))
    }


def test_no_rule_fails_on_a_value_that_the_schema_refuses() -> None:
    """A value beyond its limits does not stop rules from running, nor before 1.30 does an unknown choice."""
    wrong = [
        *wrong_values(SCHEMA["properties"]["spec"], "spec"),
        *(
            (path[1:], value)
            for path, node in nodes(SCHEMA)
            if node["type"] == "integer"
            for value in (0, -1, 2**63 - 1)
        ),
    ]
    starts = [WHOLE, job(fixed("bf16-z2-sel-mb12x8"))]
    for start, (path, value) in itertools.product(starts, wrong):
        if (changed := _with(start, path, value)) is not None:
            refused_by_rules(changed)


def _with(data: Node, path: str, value: Any) -> Node | None:
    """Return the object with one value changed; None if the value's block is missing."""
    try:
        return put(copy.deepcopy(data), path, value)
    except (AttributeError, KeyError, TypeError):
        return None


def combined(*choices: list[str]) -> list[str]:
    return ["-".join(filter(None, each)) for each in itertools.product(*choices)]


OPTIONS = combined(
    ["", "oact", "oopt", "oparam", "onvme"],
    ["", "muon", "lion", "sgd", "adafactor", "adamw8bit"],
    ["", "g32"],
    ["", "sdpa", "eager"],
)


def test_the_rules_know_every_plan_that_cannot_run() -> None:
    """Tests all plans that differ in what contradictions are about."""
    tuning = SPEC["properties"]["tuning"]
    block = with_defaults(tuning, {"mode": "Fixed", "plan": ""})
    heads = combined([each.value for each in Precision], [each.value for each in Sharding], ["none-mb12x8"])
    for text in combined(heads, OPTIONS):
        try:
            can_run = contradiction(Plan.parse(text)) is None
        except ValueError:
            can_run = False
        assert re.fullmatch(SHORT_FORM, text)
        assert (list(broken_rules(tuning, block | {"plan": text})) == []) is can_run, text


PLAN_WORDS = (
    "bf16 fp32 z2 z3 ddp fsdp sel none every4 every1 mb12x8 mb5 mbz mb mb0x1 mb99999999x99999999 mb012x8 oopt oact exp "
    "bk50m bk0 bk7 split20 split21 a"
)
plan_words = st.sampled_from([*PLAN_WORDS.split(), "", " "])
plan_texts = st.one_of(
    st.lists(plan_words, max_size=8).map("-".join),
    st.lists(plan_words, max_size=3).map(lambda words: "-".join(["bf16", "z2", "sel", "mb12x8", *words])),
    st.from_regex(SHORT_FORM, fullmatch=True),
)


@given(plan_texts, st.sampled_from([1, 3, 96, 2**62]), st.sampled_from([1, 2, 64]))
@settings(max_examples=400, deadline=None)
def test_api_server_and_python_accept_the_same_plans(text: str, batch: int, gpus: int) -> None:
    agree(job(fixed(text, training={"globalBatchSize": batch}, resources={"gpusPerNode": gpus, "nodes": 1})))


def as_kubectl_sends(value: Any) -> Any:
    """Convert as Go does: a whole float64 has no decimal point, so the API server reads an integer."""
    if isinstance(value, dict):
        return {name: as_kubectl_sends(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [as_kubectl_sends(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


def agree(data: Node) -> None:
    """Check that both sides accept or both reject the object; if only rules are broken, both blame the same fields."""
    data = as_kubectl_sends(data)
    by_schema, by_rules = refusals(SCHEMA, with_defaults(SCHEMA, data)), refused_by_rules(data)
    said = python_says(data)
    assert bool(by_schema or by_rules) == bool(said), (by_schema, by_rules, said)
    if not by_schema:
        assert {each.path for each in by_rules} == said


FOREIGN = st.dictionaries(
    st.sampled_from("abc"),
    st.none() | st.booleans() | st.integers(0, 2) | st.lists(st.integers(0, 1), max_size=2),
    max_size=2,
)


def values(node: Node) -> st.SearchStrategy[Any]:
    """Draw values for a node of the schema: mostly valid, many at a limit, some beyond it or of another type."""
    return st.one_of(*[good_values(node)] * 12, ODD)


def good_values(node: Node) -> st.SearchStrategy[Any]:
    if node["type"] == "object":
        if "properties" not in node:
            return FOREIGN
        required = set(node.get("required", ()))
        fields = {name: values(field) for name, field in node["properties"].items()}
        return st.fixed_dictionaries(
            {name: field for name, field in fields.items() if name in required},
            optional={name: field for name, field in fields.items() if name not in required},
        )
    if node["type"] == "array":
        return st.lists(values(node["items"]), max_size=node["maxItems"] + 1)
    if "enum" in node:
        return st.sampled_from(node["enum"])
    if node["type"] == "string":
        return st.from_regex(node["pattern"]) if "pattern" in node else st.text(max_size=5)
    if node["type"] == "boolean":
        return st.booleans()
    low, high = int(node["minimum"]), int(node.get("maximum", 1))
    limits = st.sampled_from([low, low + 1, high, min(high, 96), min(high, 96.0)])
    return limits if node["type"] == "integer" else limits | st.floats(low, high, allow_nan=False)


ODD_NUMBERS = st.sampled_from([0, -1, 1, 1.5, 2**53, 2**62, 2**63, 1e19, -(2**63), 10**30])
ODD_TEXTS = st.sampled_from(["", "x", "1", "/a\xa0b", "a\x0b", "a\n"])
ODD = st.none() | st.booleans() | ODD_NUMBERS | ODD_TEXTS | st.sampled_from([[], {}, {"a": 0}])


@given(st.data())
@settings(max_examples=600, deadline=None)
def test_api_server_and_python_accept_the_same_specs(data: st.DataObject) -> None:
    """A valid spec with some blocks and fields replaced by values drawn from the schema."""
    made = copy.deepcopy(data.draw(st.sampled_from([*GOOD, *(each for _, each, _ in BROKEN), WHOLE["spec"]])))
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(sorted(FIELDS)))
        changed = _with({"spec": made}, f"spec{path}", data.draw(values(FIELDS[path])))
        made = changed["spec"] if changed else made
    agree(job(made))


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_api_server_and_operator_agree_on_edits(data: st.DataObject) -> None:
    old = copy.deepcopy(data.draw(st.sampled_from(GOOD)))
    new = data.draw(st.one_of(st.just(old), st.sampled_from(GOOD), st.just(None)))
    if new is None:
        field = data.draw(st.sampled_from(FIXED))
        new = _with({"spec": old}, f"spec.{field}", data.draw(good_values(SPEC["properties"][field])))["spec"]  # type: ignore[index]
    phase = data.draw(st.sampled_from([None, "Pending", "Probing", "Running", "Succeeded"]))
    status = {} if phase is None else {"phase": phase}
    new = as_kubectl_sends(new)
    if python_says(job(new)):
        return
    by_rules = {each.path for each in refused_by_rules(job(new, **status), job(old, **status))}
    fixed = fingerprints(load_job(job(old))) if status.get("phase", "Pending") != "Pending" else ()
    assert by_rules == {f"spec.{name}" for name in changed_fields(load_job(job(new)), Status(fixed=fixed))}


def test_an_edit_of_a_field_outside_the_schema_is_seen() -> None:
    status = {"phase": "Running"}
    old = spec(model={"architecture": None, "hfConfig": {"model_type": "llama"}}, template={"spec": {"containers": []}})
    for path, value in (("spec.template.spec.containers", [{}]), ("spec.model.hfConfig.model_type", "bert")):
        new = _with(job(old, **status), path, value)
        assert new is not None
        (broken,) = refused_by_rules(new, job(old, **status))
        assert broken.path == ".".join(path.split(".")[:2])
        assert broken.reason == "FieldValueForbidden"


def test_a_number_with_a_point_is_the_number() -> None:
    assert load_job(job(spec(training={"globalBatchSize": 96.0}))).spec.training.global_batch_size == 96
    assert python_says(job(spec(training={"globalBatchSize": 96.5}))) == {"spec.training.globalBatchSize"}


@pytest.mark.parametrize(
    ("path", "value", "blamed", "rule"),
    [
        ("tuning.maxProbes", 8.0, "spec.tuning", "parallelProbes must be at most maxProbes"),
        (
            "tuning.space.microBatch",
            [8.0],
            "spec",
            "tuning.space.microBatch: one of them must divide a GPU's share of training.globalBatchSize",
        ),
        (
            "training.globalBatchSize",
            96.0,
            "spec",
            "training.globalBatchSize must be divisible by resources.nodes x resources.gpusPerNode",
        ),
        ("model.architecture.hiddenSize", 64.0, "spec.model.architecture", "hiddenSize cannot be divided among the"),
        ("training.sequenceLength", 128.0, "", ""),  # no rule reads it
        ("model.architecture.kvHeads", 4.0, "spec.model.architecture", "heads must be divisible by kvHeads"),
    ],
)
def test_an_integer_that_a_client_sends_with_a_point_fails_the_rules_that_read_it(
    path: str, value: Any, blamed: str, rule: str
) -> None:
    """kubectl never sends one, but a client that writes JSON itself may."""
    made = _with(job(spec()), f"spec.{path}", value)
    assert made is not None
    assert refusals(SCHEMA, with_defaults(SCHEMA, made)) == []
    wanted = f"invalid data, expected int, got float64 evaluating rule: {rule}"
    assert [(each.path, each.message[: len(wanted)]) for each in refused_by_rules(made)] == (
        [(blamed, wanted)] if rule else []
    )
    agree(made)


def test_a_null_among_factory_arguments_is_kept() -> None:
    made = spec(model={"architecture": None, "factory": "a:b", "factoryArguments": {"depth": None}}, template={})
    assert load_job(job(made)).spec.model.factory_arguments == {"depth": None}
