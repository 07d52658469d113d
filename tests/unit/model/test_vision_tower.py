"""Gemma 3 with its vision tower, as Google publishes it. Its parameter counts are in test_parameter_counts.py."""

from __future__ import annotations

from typing import Any

import pytest

from memtune.memory.formulas.activations import picture_bytes
from memtune.model.architecture import Adapter, Architecture
from memtune.model.count import adapter_parameters, parameters, quantizable_parameters
from memtune.model.huggingface import defaulted_sizes, from_hf_config

TEXT = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}
VISION = {
    "model_type": "siglip_vision_model",
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "image_size": 896,
    "patch_size": 14,
    "vision_use_head": False,
}
CONFIG: dict[str, Any] = {"model_type": "gemma3", "text_config": TEXT, "vision_config": VISION}


def _gemma(**changes: Any) -> Architecture:
    return from_hf_config({**CONFIG, **changes})


def test_text_visits_the_stack_alone() -> None:
    counts = parameters(_gemma())
    layer = 4 * 1152**2 + 4 * 1152 + 2 * 1152 * 4304 + 4304 + 1152 + 4 * 1152
    patches = (3 * 14**2 + 1) * 1152 + 64**2 * 1152
    assert counts.tower == 27 * layer + patches + 2 * 1152 + 1152 + 1152 * 2560
    text = parameters(from_hf_config({**TEXT, "vocab_size": 262208}))
    assert counts.active == text.active == counts.total - counts.tower


def test_a_target_names_modules_of_the_tower_too() -> None:
    # As peft finds them; the projector is a parameter, not a module.
    queries = 34 * (2560 + 8 * 256) + 27 * 2 * 1152
    assert adapter_parameters(_gemma(), Adapter(8, ("q_proj",))) == 8 * queries
    assert adapter_parameters(_gemma(), Adapter(8, ("fc1",))) == 8 * 27 * (1152 + 4304)
    tower = 27 * (4 * 1152**2 + 2 * 1152 * 4304)
    assert quantizable_parameters(_gemma()) == quantizable_parameters(from_hf_config(TEXT)) + tower


def test_missing_sizes_of_gemma_take_their_defaults() -> None:
    assert defaulted_sizes(CONFIG) == {"num_attention_heads": 8, "vocab_size": 262208}


def test_an_image_costs_the_activations_of_its_patches() -> None:
    tower = _gemma().tower
    assert tower
    assert picture_bytes(tower) == 4096 * 27 * (18 * 1152 + 4 * 4304) == 4_197_187_584


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"vision_config": {}},
            r"hfConfig.vision_config.vision_use_head: a tower with a pooling head, transformers' default, is not",
        ),
        ({"vision_config": {**VISION, "model_type": "clip"}}, r"vision_config.model_type: 'clip' is not one of siglip"),
        (
            {"text_config": {**TEXT, "model_type": "llama"}},
            r"text_config.model_type: 'llama' is not one of gemma3_text",
        ),
        ({"text_config": {**TEXT, "hidden_size": "big"}}, r"hfConfig.text_config.hidden_size: 'big' is not a whole"),
        ({"text_config": 7}, r"hfConfig.text_config: 7 is not a mapping"),
        (
            {"architectures": ["Gemma3ForCausalLM"]},
            r"hfConfig.architectures: 'ForCausalLM' is a head that is not known",
        ),
    ],
)
def test_invalid_vision_fields_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _gemma(**changes)
