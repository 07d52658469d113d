"""Libraries with kernels of their own on the emulated GPU: 8-bit optimizers, quantized layers, Liger's kernels."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from emulated_runs import emulate

_SCRIPTS = Path(__file__).parent / "scripts"
# Where tools/env.sh has put what transformers would import otherwise.
_EIGHT_BIT = Path(sys.prefix) / "eight-bit"


def _said(script: str, *arguments: str) -> list[list[str]]:
    """The words of each line that was printed."""
    code, result = emulate(_SCRIPTS / script, arguments=arguments)
    assert code == 0, result["printed"][-2000:]
    assert result["measured"]["stubs"] == []
    return [line.split() for line in result["printed"].splitlines()]


# Of 8 Mi weights, 2 moments of a byte, with 4 bytes for each 256; paged ones are not on the GPU. Layers of bitsandbytes
# have 16 Mi weights: of 4 bits with a byte for each 64, and of 8 bits with 4 bytes for each of 4096 rows.
@pytest.mark.parametrize(
    ("library", "held_mib"),
    [
        ("bitsandbytes", {"AdamW8bit": 16.25, "PagedAdamW8bit": 0.25, "Linear4bit": 8.25, "Linear8bitLt": 16.02}),
        ("torchao", {"AdamW8bit": 16.25, "Int8WeightOnlyConfig": 8.03}),
    ],
)
def test_quantized_weights_take_their_bits_and_scales(
    library: str, held_mib: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(_EIGHT_BIT), prepend=os.pathsep)
    lines = _said("quantized.py", library)
    held = {line[0]: float(line[1]) for line in lines if line and line[0] in held_mib}
    assert held == pytest.approx(held_mib, abs=0.02)


def test_ligers_loss_never_holds_the_logits() -> None:
    norm, is_finite, step_mib = _said("liger.py")[-1]
    assert (norm, is_finite) == ("LigerRMSNorm", "True")
    assert int(step_mib) < 4 * 1024 * 32_000 * 2 / 2**20, "less than the logits take in bf16"
