"""Builds the model that a Hugging Face config.json describes, instead of a user's factory."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from memtune_runner.rank.failure_causes import in_words
from memtune_runner.tracing.trace_errors import TracingError


def from_config(file: str) -> Callable[[], nn.Module]:
    """Return a factory: for the class named in ``architectures``, or else for a causal language model."""
    try:
        facts = json.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TracingError(f"this is no config.json of Hugging Face: {in_words(error)}") from None
    if not isinstance(facts, dict) or "model_type" not in facts:
        raise TracingError("this is no config.json of Hugging Face: it has no model_type")
    model_type = facts.pop("model_type")

    def build() -> nn.Module:
        try:
            return _built(model_type, {**facts, "use_cache": False})
        except (ImportError, MemoryError):  # callers handle these
            raise
        except Exception as error:
            # The problem with a field is on the line below its name.
            why = " ".join(f"{type(error).__name__}: {error}".split())
            raise TracingError(f"transformers makes no model of this config: {why}; correct the config") from error

    return build


def _built(model_type: str, facts: dict[str, Any]) -> nn.Module:
    import transformers

    configs: Any = transformers.AutoConfig
    config = configs.for_model(model_type, **facts)
    kind: Any = getattr(transformers, (config.architectures or [""])[0], transformers.AutoModelForCausalLM)
    model: nn.Module = kind._from_config(config) if hasattr(kind, "_from_config") else kind.from_config(config)
    return model
