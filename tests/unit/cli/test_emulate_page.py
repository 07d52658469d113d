"""What `memtune emulate` says of the values that a script read."""

from __future__ import annotations

import pytest

from memtune_cli.views.emulate_page import caveats


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        (
            False,
            "  No size of a tensor came from them. If the script branches on them, memory may differ on a GPU.",
        ),
        (True, "  2 sizes of tensors came from them: with other values, memory differs."),
    ],
)
def test_a_read_of_unknown_values_is_explained(sizes: bool, said: str) -> None:
    read = {"file": "a.py", "line": 3, "value": "made up", "sizes": sizes, "times": 2}
    assert said in caveats({"values": [read], "compilations": 0, "stubs": []})
