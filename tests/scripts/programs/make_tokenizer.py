"""Writes a tokenizer of SentencePiece for torchtune, which knows the pieces of a text's lines.

python make_tokenizer.py TEXT DIRECTORY
"""

from __future__ import annotations

import sys
from pathlib import Path

import sentencepiece  # type: ignore[import-not-found]  # it is among the packages of the programs

text, directory = map(Path, sys.argv[1:])
directory.mkdir()
sentencepiece.SentencePieceTrainer.train(
    input=str(text), model_prefix=str(directory / "tokenizer"), vocab_size=384, hard_vocab_limit=False, pad_id=3
)
