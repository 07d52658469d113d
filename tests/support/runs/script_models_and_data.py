"""Tiny models and data on disk, for programs that load theirs from a directory: nothing is downloaded.

Models are made in processes that are forked after the imports, which would take each worker of pytest ten seconds.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple

from warm_pythons import LIBRARIES, WarmPython

_WORDS = ("the", "red", "blue", "small", "cat", "dog", "bird", "runs", "sees", "eats", "finds", "under", "near", "tree")
_CHAT = (
    "{% for message in messages %}<|{{ message['role'] }}|> {{ message['content'] }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|> {% endif %}"
)
_GLUE = """---
configs:
- config_name: mrpc
  data_files:
  - {split: train, path: train.jsonl}
  - {split: validation, path: validation.jsonl}
---
"""
_ACCURACY = '''import datasets
import evaluate


class Glue(evaluate.Metric):
    """The share of labels that were predicted."""

    def _info(self):
        features = datasets.Features({"predictions": datasets.Value("int64"), "references": datasets.Value("int64")})
        return evaluate.MetricInfo(description="accuracy", citation="", features=features)

    def _compute(self, predictions, references):
        return {"accuracy": sum(map(int.__eq__, predictions, references)) / len(references)}
'''
_ANSWERS = ((1, "chosen"), (2, "rejected"))
# The model of `save_llama` in a job's terms.
HF_CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "vocab_size": 384,
}


# Of the same with layers so wide that what they pass on takes most of the memory.
WIDE_CONFIG: dict[str, Any] = {**HF_CONFIG, "intermediate_size": 1024}


class Material(NamedTuple):
    """Directories: two decoders, and data sets with a train and a test split: texts, pairs of a good and a bad answer,
    sentences that are more or less alike. ``instructions`` is a file, ``hub`` a directory with ``glue``'s data set and
    metric under the names by which programs load them, which finds them there before it looks for them elsewhere."""

    llama: Path
    wide: Path
    texts: Path
    pairs: Path
    alike: Path
    instructions: Path
    hub: Path


def make_material(root: Path) -> Material:
    """Make all of it below ``root``: 48 rows to train on and 16 to evaluate."""
    made = Material(
        save_llama(root / "llama"),
        save_llama(root / "wide", WIDE_CONFIG),
        *(root / name for name in ("texts", "pairs", "alike", "instructions.json", "hub")),
    )
    asked = [{"instruction": sentence(row), "input": "", "output": sentence(row + 3, 30)} for row in range(48)]
    made.instructions.write_text(json.dumps(asked))
    for split, rows in (("train", range(48)), ("test", range(1000, 1016))):
        save_rows(made.texts, split, ({"text": sentence(row, 60)} for row in rows))
        save_rows(made.pairs, split, map(_pair, rows))
        save_rows(made.alike, split, map(_alike, rows))
        save_rows(made.hub / "nyu-mll" / "glue", "validation" if split == "test" else split, map(_paraphrase, rows))
    (made.hub / "nyu-mll" / "glue" / "README.md").write_text(_GLUE)
    (made.hub / "glue").mkdir()
    (made.hub / "glue" / "glue.py").write_text(_ACCURACY)
    return made


def _pair(row: int) -> dict[str, Any]:
    answers = {name: [{"role": "assistant", "content": sentence(row + 7 * place, 8)}] for place, name in _ANSWERS}
    return {"prompt": [{"role": "user", "content": sentence(row, 8)}], **answers}


def _alike(row: int) -> dict[str, Any]:
    alike = {"sentence1": sentence(row, 50), "sentence2": sentence(row + row % 3, 50)}
    return {**alike, "score": 1.0 - row % 3 / 2}


def _paraphrase(row: int) -> dict[str, Any]:
    return {"sentence1": sentence(row, 6), "sentence2": sentence(row + row % 2, 6), "label": row % 2, "idx": row}


def _forked(save: Callable[..., Path]) -> Callable[..., Path]:
    """Let a function that saves a model run in a process of its own."""

    @wraps(save)
    def saved(directory: Path, *arguments: Any) -> Path:
        from warm_environment import read_by_libraries

        words = [__file__, save.__name__, json.dumps([directory, *arguments], default=str)]
        process = WarmPython(
            words, {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, LIBRARIES, read=read_by_libraries()
        )
        said, _ = process.communicate(300)
        process.kill()
        assert process.returncode == 0, said
        return directory

    return saved


@_forked
def save_llama(directory: Path, described: dict[str, Any] = HF_CONFIG) -> Path:
    """A decoder with random weights, and a tokenizer of bytes beside it."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = LlamaConfig(**{**described, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1})
    LlamaForCausalLM(config).save_pretrained(directory)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<pad>", "<eos>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=described["vocab_size"], special_tokens=special, initial_alphabet=alphabet)
    tokenizer.train_from_iterator((sentence(number) for number in range(100)), trainer)
    tokens = {"pad_token": special[0], "bos_token": special[1], "eos_token": special[1]}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **tokens)  # type: ignore[no-untyped-call]  # has no types
    fast.chat_template = _CHAT
    fast.save_pretrained(directory)
    return directory


_BERT: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 384,
    "max_position_embeddings": 128,
}


@_forked
def save_bert(directory: Path, tokenizer: Path, width: int) -> Path:
    """An encoder with random weights that gives one number, and a tokenizer that is there already."""
    import torch
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    BertForSequenceClassification(BertConfig(**_BERT | {"intermediate_size": width, "num_labels": 1})).save_pretrained(
        directory
    )
    AutoTokenizer.from_pretrained(tokenizer).save_pretrained(directory)
    return directory


@_forked
def save_language_bert(directory: Path, tokenizer: Path) -> Path:
    """The same, with a head over the vocabulary."""
    import torch
    from transformers import AutoTokenizer, BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    BertForMaskedLM(BertConfig(**_BERT)).save_pretrained(directory)
    AutoTokenizer.from_pretrained(tokenizer).save_pretrained(directory)
    return directory


def sentence(number: int, words: int = 12) -> str:
    """An endless series of sentences, always the same for the same number."""
    return " ".join(_WORDS[(number * 7 + place * (number % 5 + 3)) % len(_WORDS)] for place in range(words))


def save_rows(directory: Path, split: str, rows: Iterable[dict[str, Any]]) -> Path:
    """Write JSON lines where `datasets` finds the split of a data set."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return directory


if __name__ == "__main__":
    _, name, words = sys.argv
    directory, *arguments = json.loads(words)
    globals()[name].__wrapped__(Path(directory), *arguments)
