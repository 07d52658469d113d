"""The words of a command that runs here instead of in a pod."""

from __future__ import annotations

import pytest

from memtune_operator.local import moved


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("/checkpoints", "/home/a/c"),
        ("/checkpoints/run", "/home/a/c/run"),
        ("--output_dir=/checkpoints/run", "--output_dir=/home/a/c/run"),
        ("/checkpoints-old/run", "/checkpoints-old/run"),
        ("/data/checkpoints/run", "/data/checkpoints/run"),
        ("train.py", "train.py"),
    ],
)
def test_where_a_pod_has_its_volume_is_a_directory_here(word: str, expected: str) -> None:
    assert moved(word, "/checkpoints", "/home/a/c") == expected
