"""What a million tokens cost, as the `memtune` command predicts it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from cli_jobs import DENSE, job, written

from memtune_cli.main import main

Captured = pytest.CaptureFixture[str]
PLAN = "bf16-z3-full-mb1x32"


def priced(folder: Path, price: float = 2.5, **resources: Any) -> str:
    """The dense example on eight A100, each at a price."""
    data = job()
    data["spec"]["resources"] |= {"gpuHourPrice": price, **resources}
    return written(folder, data)


def document(capsys: Captured, *arguments: str) -> dict[str, Any]:
    main([*arguments, "--format", "json"])
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def cost_of(told: dict[str, Any], price: float) -> Any:
    """Dollars per million tokens of eight GPUs, at the speed of a document."""
    return pytest.approx(price * 8 / 3600 * 1e6 / told["tokensPerSecond"]["expected"], rel=1e-3)


def test_every_plan_has_its_cost(tmp_path: Path, capsys: Captured) -> None:
    told = document(capsys, "plan", priced(tmp_path))
    assert told["gpuHourPrice"] == 2.5
    for plan in (told["chosen"], *told["fitting"], *told["uncertain"], *told["dropped"]):
        cost = plan["costPerMillionTokens"]
        assert cost["expected"] == cost_of(plan, 2.5)
        assert cost["lower"] < cost["expected"] < cost["upper"], "the fastest step costs the least"


def test_the_page_shows_the_cost_and_at_which_price(tmp_path: Path, capsys: Captured) -> None:
    main(["plan", priced(tmp_path)])
    page = capsys.readouterr().out
    assert re.search(r"^  # .* 1M tokens$", page, re.MULTILINE)
    assert re.search(r"^  1 .* \$0\.\d{3}$", page, re.MULTILINE)
    assert re.search(r"Cost +\$0\.\d{3} a million tokens \(\$0\.\d{3} to \$0\.\d{3}\), at \$2\.50 a GPU-hour", page)
    assert max(map(len, page.splitlines())) <= 100
    main(["estimate", priced(tmp_path), "--plan", PLAN])
    assert "at $2.50 a GPU-hour" in capsys.readouterr().out


@pytest.mark.parametrize("command", [["plan", DENSE], ["estimate", DENSE, "--plan", PLAN]])
def test_without_a_price_nothing_is_said_of_costs(command: list[str], capsys: Captured) -> None:
    main(command)
    page = capsys.readouterr().out
    main([*command, "--format", "json"])
    assert not re.search(r"\$|cost|price", page + capsys.readouterr().out, re.IGNORECASE)


def test_the_price_is_that_of_the_jobs_own_gpu(tmp_path: Path, capsys: Captured) -> None:
    file = priced(tmp_path)
    assert "gpuHourPrice" not in document(capsys, "plan", file, "--gpu", "h100-80gb")
    assert document(capsys, "plan", file, "--gpu", "a100-80gb")["gpuHourPrice"] == 2.5
    unnamed = priced(tmp_path, gpuProduct=None)
    assert document(capsys, "plan", unnamed, "--gpu", "h100-80gb")["gpuHourPrice"] == 2.5


def test_a_virtual_gpu_costs_nothing_that_could_be_predicted(tmp_path: Path, capsys: Captured) -> None:
    main(["plan", priced(tmp_path, device="virtual")])
    assert "$" not in capsys.readouterr().out


@pytest.mark.parametrize("price", [0, -1, "2.5", True, 1e7])
def test_a_price_is_a_number_above_0(price: Any, tmp_path: Path, capsys: Captured) -> None:
    assert main(["plan", priced(tmp_path, price)]) == 2
    assert "spec.resources.gpuHourPrice: " in capsys.readouterr().err
