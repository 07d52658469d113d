"""What inductor is told on the emulated GPU."""

from __future__ import annotations

from typing import Any

import pytest

from memtune_runner.emulated.process import compile_without_timing


def test_inductor_with_plain_settings_times_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import config  # takes seconds

    # As up to torch 2.5.
    settings: dict[str, Any] = dict.fromkeys(config._config, True)  # type: ignore[attr-defined]  # made by an import
    monkeypatch.setitem(vars(config), "_config", settings)
    compile_without_timing()
    assert not settings["max_autotune"]
    assert not settings["triton.cudagraphs"]
