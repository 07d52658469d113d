"""The KV cache: numbers worked out by hand for well-known models."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memtune.memory.kv_cache import Generation, kv_budget, token_bytes
from memtune.memory.workload import Evaluation
from memtune.model.architecture import Architecture, Kind
from memtune.units import GIB, KIB, MIB

LLAMA_2_7B = Architecture("llama-2-7b", Kind.DECODER, 4096, 32, 32, 32, 128, 11008, 32000)
LLAMA_3_8B = Architecture("llama-3-8b", Kind.DECODER, 4096, 32, 32, 8, 128, 14336, 128256)
LLAMA_3_70B = Architecture("llama-3-70b", Kind.DECODER, 8192, 80, 64, 8, 128, 28672, 128256)
T5_LIKE = Architecture("t5-like", Kind.ENCODER_DECODER, 512, 6, 8, 8, 64, 2048, 32128, encoder_layers=6)


@pytest.mark.parametrize(
    ("architecture", "expected_bytes"),
    [
        (LLAMA_2_7B, 512 * KIB),  # 2 x 32 layers x 32 heads x 128 x 2 B
        (LLAMA_3_8B, 128 * KIB),  # a quarter of the heads: 8 of 32
        (LLAMA_3_70B, 320 * KIB),  # 2 x 80 x 8 x 128 x 2 B
    ],
)
def test_bytes_per_token_in_fp16(architecture: Architecture, expected_bytes: int) -> None:
    assert token_bytes(architecture) == expected_bytes


def test_an_fp8_cache_is_half_and_ranks_share_heads_down_to_one() -> None:
    assert token_bytes(LLAMA_3_8B, element_bytes=1) == 64 * KIB
    assert token_bytes(LLAMA_3_8B, tensor_parallel=4) == 32 * KIB
    assert token_bytes(LLAMA_3_8B, tensor_parallel=8) == token_bytes(LLAMA_3_8B, tensor_parallel=16) == 16 * KIB


def test_a_sequence_takes_whole_pages() -> None:
    # 1,000 tokens are 63 pages of 16, the last of which holds 8: 128 KiB x 16 a page.
    budget = kv_budget(LLAMA_3_8B, Generation(sequences=64, tokens=1000), free_bytes=10 * GIB)
    assert budget.page_bytes == 2 * MIB
    assert (budget.pages_per_sequence, budget.pages) == (63, 4032)
    assert budget.needed_bytes == 4032 * 2 * MIB
    assert budget.wasted_bytes == 64 * 8 * 128 * KIB
    assert budget.fitting_sequences == 81  # 10,240 MiB / 126 MiB
    assert budget.left_bytes == 10 * GIB - 8064 * MIB


def test_a_cache_that_does_not_fit_says_how_many_sequences_do() -> None:
    # 4,096 tokens of Llama-2-7B are exactly 2 GiB.
    budget = kv_budget(LLAMA_2_7B, Generation(sequences=8, tokens=4096), free_bytes=15 * GIB)
    assert budget.fitting_sequences == 7
    assert budget.left_bytes == -1 * GIB
    assert kv_budget(LLAMA_2_7B, Generation(1, 4096), free_bytes=-GIB).fitting_sequences == 0


def test_the_optimizer_gets_the_memory_left_by_weights_and_cache() -> None:
    # 79 GiB less 15 GiB of weights less 16 sequences x 2 GiB.
    assert kv_budget(LLAMA_2_7B, Generation(16, 4096), free_bytes=(79 - 15) * GIB).left_bytes == 32 * GIB
    assert kv_budget(LLAMA_2_7B, Generation(40, 4096), free_bytes=(79 - 15) * GIB).left_bytes == -16 * GIB


def test_an_encoder_decoder_caches_cross_attention_too() -> None:
    # 2 x 6 x 8 x 64 x 2 B = 12 KiB a token; 100 tokens are 7 pages, 512 source tokens 32.
    budget = kv_budget(T5_LIKE, Generation(sequences=2, tokens=100, source_tokens=512), free_bytes=GIB)
    assert budget.token_bytes == 12 * KIB
    assert budget.pages == 2 * (7 + 32)
    assert budget.wasted_bytes == 2 * (39 * 16 - 612) * 12 * KIB


def test_an_evaluation_that_says_no_more_generates_its_batch() -> None:
    assert Evaluation(8, generates=True).generation(1000).cached_tokens == 8 * 63 * 16
    told = Evaluation(8, generates=True, concurrent_sequences=32, sequence_tokens=100, page_tokens=64)
    assert told.generation(1000).cached_tokens == 32 * 2 * 64


def test_a_model_that_cannot_generate_has_no_kv_cache() -> None:
    with pytest.raises(ValueError, match="llama-3-8b is no decoder"):
        token_bytes(replace(LLAMA_3_8B, kind=Kind.ENCODER))
    with pytest.raises(ValueError, match="page_tokens is 0; it must be above 0"):
        Generation(sequences=1, tokens=1, page_tokens=0)
