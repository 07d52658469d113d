"""A probe's batches are as long as the job's sequences, whatever columns a collator makes."""

from __future__ import annotations

from collections import OrderedDict, UserDict
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils._pytree import register_pytree_node
from transformers import BatchEncoding, DataCollatorWithFlattening

from memtune_runner.integrations.padding_collator import PaddingCollator
from memtune_runner.rank.padding import padded

IDS = torch.tensor([[5, 6, 7], [8, 9, 3]])
MASK = torch.tensor([[1, 1, 1], [1, 1, 0]])
POSITIONS = torch.tensor([[0, 1, 2], [0, 1, 0]])


class Batch(dict[str, Any]):
    """A batch class that torch's pytree does not know."""


def of_a_library(batch: Any, length: int) -> Any:
    """Pad the batch as probes of hf-trainer and accelerate do."""
    return PaddingCollator(lambda _: batch, length)(None)


def shapes(batch: Any) -> dict[str, tuple[int, ...]]:
    return {name: tuple(each.shape) for name, each in batch.items()}


def values(batch: Any) -> dict[str, Any]:
    return {name: each.tolist() for name, each in batch.items()}


@pytest.mark.parametrize("kind", [dict, OrderedDict, UserDict, Batch, BatchEncoding])
def test_every_column_of_the_tokens_length_is_padded(kind: type[Any]) -> None:
    batch = kind(
        {
            "input_ids": IDS,
            "attention_mask": MASK,
            "labels": IDS.clone(),
            "position_ids": POSITIONS,
            "token_type_ids": torch.tensor([[0, 0, 1], [0, 1, 1]]),
            "special_tokens_mask": MASK.bool(),
        }
    )
    wider = padded(batch, 5)
    assert type(wider) is kind
    assert values(wider) == {
        "input_ids": [[5, 6, 7, 0, 0], [8, 9, 3, 0, 0]],
        "attention_mask": [[1, 1, 1, 1, 1], [1, 1, 0, 1, 1]],
        "labels": [[5, 6, 7, 0, 0], [8, 9, 3, 0, 0]],
        "position_ids": [[0, 1, 2, 3, 4], [0, 1, 0, 1, 2]],
        "token_type_ids": [[0, 0, 1, 1, 1], [0, 1, 1, 1, 1]],
        "special_tokens_mask": [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]],
    }


def test_a_decoders_columns_have_a_length_of_their_own() -> None:
    short = torch.tensor([[4, 2], [4, 2]])
    batch = {"input_ids": IDS, "labels": short, "decoder_attention_mask": short > 2, "decoder_position_ids": short - 4}
    assert {name: tuple(each.shape) for name, each in padded(batch, 6).items()} == dict.fromkeys(batch, (2, 6))


def test_a_mapping_within_another_is_padded_and_the_scripts_own_stays_as_it_is() -> None:
    inner = Batch(input_ids=IDS)
    wider = padded([{"first": inner, "second": [IDS]}], 5)
    assert type(wider[0]["first"]) is Batch
    assert (wider[0]["first"]["input_ids"].shape, wider[0]["second"][0].shape) == ((2, 5), (2, 5))
    assert inner["input_ids"] is IDS


def test_a_class_that_torchs_trees_know_without_its_names_is_padded() -> None:
    class Pair:
        def __init__(self, tokens: Any) -> None:
            self.tokens = tokens

    register_pytree_node(Pair, lambda pair: ([pair.tokens], None), lambda values, _: Pair(*values))
    assert padded(Pair(IDS), 5).tokens.shape == (2, 5)


def test_labels_of_their_own_length_are_classes_in_a_loop_of_ones_own_and_tokens_in_the_libraries() -> None:
    short = torch.tensor([[1, 0], [0, 1]])
    batch = {"input_ids": IDS, "labels": short, "choices": short}
    assert shapes(padded(batch, 5)) == {"input_ids": (2, 5), "labels": (2, 2), "choices": (2, 2)}
    assert shapes(of_a_library(batch, 5)) == {"input_ids": (2, 5), "labels": (2, 5), "choices": (2, 2)}


def test_labels_longer_than_the_tokens_are_those_of_a_decoder() -> None:
    batch = {"input_ids": IDS[:, :2], "labels": IDS}
    assert shapes(padded(batch, 5)) == shapes(of_a_library(batch, 5)) == dict.fromkeys(batch, (2, 5))


def test_labels_beside_a_decoder_of_another_length_are_classes() -> None:
    batch = {"input_ids": IDS, "decoder_input_ids": IDS[:, :2], "labels": torch.tensor([[1], [0]])}
    assert shapes(padded(batch, 5)) == {"input_ids": (2, 5), "decoder_input_ids": (2, 5), "labels": (2, 1)}


def test_an_encoder_of_sounds_has_labels_alone() -> None:
    batch = {"input_features": torch.ones(2, 8, 30), "attention_mask": torch.ones(2, 30).long(), "labels": IDS}
    unlike = {"input_features": (2, 8, 30), "attention_mask": (2, 30), "labels": (2, 5)}
    assert shapes(of_a_library(batch, 5)) == unlike


@pytest.mark.parametrize("batch", [{"features": IDS}, {"features": IDS, "labels": IDS[:, 0]}, (IDS, IDS)])
def test_whole_numbers_without_a_known_name_are_no_tokens_in_the_libraries(batch: Any) -> None:
    wider = of_a_library(batch, 5)
    assert all(tuple(each.shape) in ((2, 3), (2,)) for each in (wider.values() if isinstance(wider, dict) else wider))


def test_columns_without_tokens_are_not_padded() -> None:
    others = {
        "labels": torch.tensor([[0.0, 1.0, 0.0], [1.0, 1.0, 0.0]]),  # several classes at once
        "choices": torch.tensor([[1, 2], [3, 4]]),
        "pixel_values": torch.ones(2, 3, 3),
        "lengths": torch.tensor([3, 2]),
        "texts": ["a", "b"],
        "rate": 0.5,
    }
    wider = padded({"input_ids": IDS, **others}, 5)
    assert wider["input_ids"].shape == (2, 5)
    assert all(wider[name] is each for name, each in others.items() if name != "texts")
    assert wider["texts"] == ["a", "b"]


def test_padded_positions_stay_within_the_models_limit() -> None:
    beyond = {"input_ids": IDS, "position_ids": torch.tensor([[7, 8, 9]])}
    assert padded(beyond, 5)["position_ids"].tolist() == [[7, 8, 9, 9, 9]]


def test_positions_may_have_more_dimensions() -> None:
    wider = padded({"input_ids": IDS, "position_ids": POSITIONS.expand(3, 2, 3)}, 5)
    assert wider["position_ids"].shape == (3, 2, 5)
    assert wider["position_ids"][0, 0].tolist() == [0, 1, 2, 3, 4]


def test_without_names_the_longest_whole_numbers_are_the_tokens() -> None:
    class Batch(NamedTuple):
        tokens: torch.Tensor
        classes: torch.Tensor

    wider = padded(Batch(IDS, IDS[:, :2]), 5)
    assert wider.tokens.tolist() == [[5, 6, 7, 7, 7], [8, 9, 3, 3, 3]]
    assert wider.classes.shape == (2, 2)
    labels = torch.tensor([[1, 0], [0, 1]])
    assert padded({"tokens": IDS, "labels": labels}, 5)["labels"] is labels


@pytest.mark.parametrize("length", [1, 3])
def test_long_sequences_are_not_padded(length: int) -> None:
    batch = {"input_ids": IDS, "labels": IDS}
    assert padded(batch, length)["input_ids"] is IDS
    assert padded("a text", 5) == "a text"


def test_a_flattening_collator_is_followed_where_no_kernel_counts_its_sequences() -> None:
    samples = [{"input_ids": [1, 2, 3]}, {"input_ids": [4, 5]}]
    flattening: Any = DataCollatorWithFlattening
    wider = PaddingCollator(flattening(), 8)(samples)
    assert {name: tuple(each.shape) for name, each in wider.items()} == dict.fromkeys(wider, (1, 8))
    assert wider["position_ids"].tolist() == [[0, 1, 2, 0, 1, 2, 3, 4]]
    told = PaddingCollator(flattening(return_flash_attn_kwargs=True), 8)(samples)
    assert told["input_ids"].shape == (1, 5)


def test_a_mask_of_pairs_cannot_be_padded() -> None:
    batch = {"input_ids": IDS, "attention_mask": torch.ones(2, 1, 3, 3)}
    assert padded(batch, 5)["input_ids"] is IDS
