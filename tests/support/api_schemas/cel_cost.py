"""The maximal cost of a CRD's CEL rule, by the API server's cost model.

The costs are those of cel-go's checker/cost.go and of k8s.io/apiserver's pkg/cel/library/cost.go, the limits those of
k8s.io/apiextensions-apiserver's pkg/apis/apiextensions/validation. Where these are more exact, a cost here is higher.
Supports only the parts of CEL that the rules use.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import ceil
from typing import Any

RULE_LIMIT = 10_000_000
CRD_LIMIT = 100_000_000
REQUEST_BYTES = 3 * 1024 * 1024
Schema = dict[str, Any]

_TOKEN = re.compile(r"\s*('[^']*'|[A-Za-z_]\w*|\d+|&&|\|\||[=!<>]=|[-+*/%<>!?:.,()\[\]])")
_LEVELS = (("||",), ("&&",), ("==", "!=", "<", "<=", ">", ">=", "in"), ("+", "-"), ("*", "/", "%"))
_TRAVERSED, _SEARCHED = 0.1, 0.25  # the cost per character of a text, and of a regular expression
_LIST = 10
# The result of a split.
_PIECE = {"type": "string", "of": "split"}


class UnboundedError(Exception):
    """A rule iterates over something without a limit in the schema."""


@dataclass(frozen=True)
class Value:
    """The cost of an expression, and its value: the schema, and the maximal length of a text or list."""

    cost: float
    schema: Schema | None = None
    size: float | None = None

    def walked(self) -> float:
        """The size that an iteration costs."""
        if self.size is None:
            raise UnboundedError(str(self.schema))
        return self.size


def rule_cost(rule: str, schema: Schema) -> int:
    """The maximal cost of one evaluation of a rule of this schema."""
    reader = _Reader(rule, {"self": schema, "oldSelf": schema})
    value = reader.ternary()
    assert not reader.tokens, f"{rule}: {reader.tokens} is not understood"
    return ceil(value.cost)


class _Reader:
    def __init__(self, rule: str, names: dict[str, Schema]) -> None:
        self.tokens = [match[1] for match in _TOKEN.finditer(rule)]
        assert "".join(self.tokens) == re.sub(r"\s+(?=(?:[^']*'[^']*')*[^']*$)", "", rule), rule
        self.names = names

    def take(self, token: str) -> bool:
        if self.tokens[:1] == [token]:
            del self.tokens[0]
            return True
        return False

    def ternary(self) -> Value:
        condition = self.binary(0)
        if not self.take("?"):
            return condition
        yes = self.ternary()
        assert self.take(":")
        return Value(condition.cost + max(yes.cost, self.ternary().cost), size=1)

    def binary(self, level: int) -> Value:
        if level == len(_LEVELS):
            return self.unary()
        left = self.binary(level + 1)
        while self.tokens and self.tokens[0] in _LEVELS[level]:
            operator, right = self.tokens.pop(0), self.binary(level + 1)
            left = Value(left.cost + right.cost + _compared(operator, left, right), size=1)
        return left

    def unary(self) -> Value:
        if self.take("!"):
            return Value(self.unary().cost + 1, size=1)
        value = self.primary()
        while self.tokens and self.tokens[0] in (".", "["):
            value = self.member(value) if self.take(".") else self.item(value)
        return value

    def primary(self) -> Value:
        token = self.tokens.pop(0)
        if token == "(":
            value = self.ternary()
            assert self.take(")")
            return value
        if token[0] == "'":
            return Value(0, {"type": "string"}, len(token) - 2)
        if token.isdecimal():
            return Value(0, {"type": "integer"}, 1)
        if self.take("("):
            assert token in ("has", "int"), f"no price is known for {token}()"
            (argument,) = self.arguments()
            return Value(argument.cost + (1 if token == "has" else ceil(argument.walked() * _TRAVERSED)), size=1)
        return _value(1, self.names[token])

    def item(self, of: Value) -> Value:
        assert self.take("[")
        index = self.ternary()
        assert self.take("]")
        return Value(of.cost + index.cost + 1, of.schema if of.schema == _PIECE else {"type": "string"}, of.size)

    def member(self, of: Value) -> Value:
        name = self.tokens.pop(0)
        if not self.take("("):
            assert of.schema is not None
            return _value(of.cost + 1, of.schema["properties"][name])
        if name == "exists":
            return self.exists(of)
        argument, *others = self.arguments()
        paid = of.cost + sum(each.cost for each in (argument, *others))
        walked = ceil(of.walked() * _TRAVERSED)
        if name == "matches":
            return Value(paid + walked * ceil(argument.walked() * _SEARCHED), size=1)
        if name == "contains":
            return Value(paid + walked * ceil(argument.walked() * _TRAVERSED), size=1)
        if name == "indexOf":
            return Value(paid + walked, size=1)
        assert name in ("split", "substring"), f"no price is known for {name}()"
        # Kubernetes 1.25 rejects such a rule: it estimates the pieces of a text to be as large as a request.
        assert not (name == "split" and of.schema == _PIECE), "Kubernetes 1.25 cannot bound a split of a piece"
        schema = _PIECE if name == "split" or of.schema == _PIECE else {"type": "string"}
        return Value(paid + walked + _LIST, schema, of.size)

    def exists(self, of: Value) -> Value:
        """Cost a macro, whose condition is evaluated for each item, with one more step for the result so far."""
        assert of.schema is not None
        name = self.tokens.pop(0)
        assert self.take(",")
        self.names = {**self.names, name: of.schema["items"]}
        condition = self.ternary()
        assert self.take(")")
        return Value(of.cost + of.walked() * (condition.cost + 2) + 1, size=1)

    def arguments(self) -> list[Value]:
        found = [self.ternary()]
        while self.take(","):
            found.append(self.ternary())
        assert self.take(")")
        return found


def _compared(operator: str, left: Value, right: Value) -> float:
    if operator == "in":
        return right.walked()
    if operator in ("==", "!="):
        # A comparison costs the shorter length; a whole block is never longer than a request.
        sizes = [each.size for each in (left, right) if each.size is not None]
        return max(1, ceil(min(sizes, default=REQUEST_BYTES) * _TRAVERSED))
    return 1


def _value(cost: float, schema: Schema) -> Value:
    return Value(cost, schema, _size(schema))


def _size(schema: Schema) -> float | None:
    kind = schema.get("type")
    if kind == "string":
        if "enum" in schema:
            return max(map(len, schema["enum"]))
        return schema["maxLength"] * 4 if "maxLength" in schema else None  # a character has at most 4 bytes
    if kind == "array":
        inner = _size(schema["items"])
        return schema["maxItems"] * max(inner, 1) if "maxItems" in schema and inner is not None else None
    return None if kind == "object" else 1
