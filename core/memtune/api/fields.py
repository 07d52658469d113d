"""Field types of the object, each pattern with the words that explain it in an error."""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from memtune.planning.cost import MOST_DOLLARS
from memtune.plans.plan import SHORT_FORM, Plan


class SpecBlock(BaseModel):
    """One block of the object: camelCase in YAML, snake_case in Python, unknown fields rejected."""

    model_config = ConfigDict(
        alias_generator=to_camel, extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True
    )


Kind = TypeVar("Kind", bound=SpecBlock)


def left_out(block: type[Kind]) -> Kind:
    """The default of an omitted block. Unchecked, since validation would compile each block on import."""
    return block.model_construct()


# A pattern must mean the same to Rust (pydantic), Go (the API server) and Python: always anchored, no lookarounds, and
# no \s, \d or \w, which are ASCII in Go and Unicode in the others.
QUANTITY = r"^[1-9][0-9]*(\.[0-9]+)?[MGT]i?$"
PERCENT = r"^(([0-9]|[1-4][0-9])(\.[0-9]+)?|50)%$"
SHARE = r"^[1-9][0-9]?%$"
CHECKPOINTING = r"^(none|selective|full|every-([2-9]|[1-9][0-9]{1,2}))$"
CALLABLE = r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_.]*$"
ABSOLUTE_PATH = r"^/[^ \t\n\v\f\r:]*$"
RESOURCE_NAME = r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$"
LABEL_VALUE = r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$"
OBJECT_NAME = r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$"
ONE_WORD = r"^[^ \t\n\v\f\r]+$"
CONDITION_REASON = r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"
PLAN_NAME = r"^[a-z0-9-]+$"
WORD = r"^[A-Za-z0-9_.+-]*$"
ASCII = r"^[ -~]*$"

PATTERN_WORDS = {
    QUANTITY: "a quantity of memory; write it with its unit, like 80Gi, 512Mi or 16G",
    PERCENT: "a percentage from 0% to 50%; write it like 6% or 7.5%",
    SHARE: "a share from 1% to 99%; write it like 45%",
    CHECKPOINTING: "a way of checkpointing; use none, selective, every-K (K from 2 to 999) or full",
    CALLABLE: "a Python callable; write it as module:function, like train:build",
    ABSOLUTE_PATH: "an absolute path without blanks and colons; write it like /checkpoints",
    RESOURCE_NAME: "the name of an extended resource; write it like nvidia.com/gpu",
    LABEL_VALUE: "a label value; use letters, digits, '-', '_' and '.', with a letter or digit at both ends",
    OBJECT_NAME: "the name of an object; use small letters, digits, '-' and '.', with a letter or digit at both ends",
    ONE_WORD: "one word; write it without blanks",
    CONDITION_REASON: "the reason of a condition; write it in one CamelCase word",
    PLAN_NAME: "the short form of a plan; write it like bf16-z2-sel-mb4x8",
    WORD: "one word; use letters, digits, '-', '+', '_' and '.'",
    ASCII: "one line of ASCII; escape everything else",
}


def _read_as_plan(text: str) -> str:
    if re.fullmatch(SHORT_FORM, text):
        return text
    try:
        plan = Plan.parse(text)
    except ValueError as error:
        raise PydanticCustomError("no_plan", "{why}", {"why": str(error)}) from None
    raise PydanticCustomError("no_plan", "plan {text} is written {plan}", {"text": repr(text), "plan": str(plan)})


# Strict, because the API server converts neither "8" to 8 nor "yes" to true.
Whole = Annotated[int, Strict()]
Count = Annotated[int, Strict(), Field(ge=1)]
# For a number without a limit of its own: the API server stores 64 bits.
MOST = 2**62
Number = Annotated[float, Strict()]
Price = Annotated[Number, Field(gt=0, le=MOST_DOLLARS)]
Flag = Annotated[bool, Strict()]
Text = Annotated[str, Field(min_length=1, max_length=253)]
Quantity = Annotated[str, Field(pattern=QUANTITY, max_length=32)]
Percent = Annotated[str, Field(pattern=PERCENT, max_length=16)]
Share = Annotated[str, Field(pattern=SHARE, max_length=16)]
AbsolutePath = Annotated[str, Field(pattern=ABSOLUTE_PATH, max_length=1024)]
# Plan.parse checks the text itself, because its errors say which part is wrong.
ShortForm = Annotated[
    str,
    Field(max_length=128, json_schema_extra={"pattern": SHORT_FORM}),
    AfterValidator(_read_as_plan),
]
ObjectName = Annotated[str, Field(pattern=OBJECT_NAME, max_length=253)]


def _distinct(items: tuple[Any, ...]) -> tuple[Any, ...]:
    twice = [str(item) for position, item in enumerate(items) if item in items[:position]]
    if twice:
        raise PydanticCustomError("twice", "{item} is given twice; take one out", {"item": twice[0]})
    return items


# A list of choices is a set, also for the API server.
Distinct = AfterValidator(_distinct)


def to_ratio(percent: str) -> float:
    """A percentage as a fraction of 1."""
    return float(percent.rstrip("%")) / 100


# Blocks of others (Kubernetes, Hugging Face) pass through unchanged.
Foreign = Annotated[dict[str, Any], Field(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})]
