"""The cost of a million tokens, as the `memtune` command predicts it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from cli_jobs import DENSE, job, refusal_message, write_job

from memtune_cli.main import main

Captured = pytest.CaptureFixture[str]
PLAN = "bf16-z3-full-mb1x32"


def priced(folder: Path, price: float = 2.5, **resources: Any) -> str:
    """Predict the dense example on eight A100 at a price each."""
    data = job()
    data["spec"]["resources"] |= {"gpuHourPrice": price, **resources}
    return write_job(folder, data)


def document(capsys: Captured, *arguments: str) -> dict[str, Any]:
    main([*arguments, "--format", "json"])
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def cost_of(told: dict[str, Any], price: float) -> Any:
    """Return dollars per million tokens of eight GPUs, at the speed in a document."""
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


def table_of(page: str) -> list[list[str]]:
    """Return the rows of the comparison as lists of cells."""
    lines = page[page.index("The best plan on each GPU") :].split("\n\n")[0].splitlines()[2:]
    return [re.split(r" {2,}", line.strip()) for line in lines]


def test_several_gpus_are_compared_the_cheapest_first(capsys: Captured) -> None:
    prices = "a100-80gb=2,h100-80gb=4,l4-24gb=0.5"
    assert main(["plan", DENSE, "--gpu", "l4-24gb,a100-80gb,h100-80gb", "--gpu-hour-price", prices]) == 0
    page = capsys.readouterr().out
    assert page.startswith("llama-7b-8gpu on 8 GPUs of each kind, 256 sequences of 4,096 tokens a step\n")
    assert "The best plan on each GPU, the cheapest first" in page
    rows = table_of(page)
    found = [(row[0], row[-2]) for row in rows]
    assert found == [("h100-80gb", "$4.00"), ("a100-80gb", "$2.00"), ("l4-24gb", "$0.500")]
    costs = [float(row[-1].removeprefix("$")) for row in rows]
    assert costs == sorted(costs)
    assert max(map(len, page.splitlines())) <= 100


def test_each_gpu_has_the_plan_it_would_have_alone(capsys: Captured) -> None:
    told = document(capsys, "plan", DENSE, "--gpu", "a100-80gb,h100-80gb", "--gpu-hour-price", "H100-80GB=4")
    assert list(told)[:4] == ["version", "command", "job", "nodes"]
    assert [each["gpu"]["name"] for each in told["gpus"]] == ["h100-80gb", "a100-80gb"], "what has no price is last"
    for each in told["gpus"]:
        alone = document(capsys, "plan", DENSE, "--gpu", each["gpu"]["name"])["chosen"]
        best = each["best"]
        assert (best["plan"], best["tokensPerSecond"]) == (alone["plan"], alone["tokensPerSecond"])
        assert each["fits"] is True
    priced, unpriced = told["gpus"]
    assert list(priced) == ["gpu", "gpuHourPrice", "fits", "best"]
    assert priced["gpuHourPrice"] == 4
    assert priced["best"]["costPerMillionTokens"]["expected"] == cost_of(priced["best"], 4)
    assert "gpuHourPrice" not in unpriced
    assert "costPerMillionTokens" not in unpriced["best"]


def test_a_gpu_on_which_nothing_fits_says_so_and_why(tmp_path: Path, capsys: Captured) -> None:
    prices = "v100-32gb=1,t4-16gb=0.2,h100-80gb=4"
    data = job(tuning={"space": {"precision": ["bf16", "fp16"], "zeroStages": [2], "backends": ["deepspeed"]}})
    arguments = ["plan", write_job(tmp_path, data), "--gpu-hour-price", prices, "--gpu", "t4-16gb,v100-32gb,h100-80gb"]
    assert main(arguments) == 0
    page = capsys.readouterr().out
    assert table_of(page)[-1] == ["t4-16gb", "no plan fits", "$0.200"]
    assert re.search(r"No plan fits\n  t4-16gb: the smallest plan, fp16-\S+, needs [\d.]+ GiB, the GPU has 14\.5", page)
    last = document(capsys, *arguments)["gpus"][-1]
    assert (last["fits"], last["best"]) == (False, None)
    assert last["reason"].startswith("the smallest plan, fp16-")


def test_a_gpu_without_a_runnable_plan_has_a_row(capsys: Captured) -> None:
    assert main(["plan", DENSE, "--gpu", "v100-32gb,h100-80gb"]) == 0
    page = capsys.readouterr().out
    assert "The best plan on each GPU, the fastest first" in page
    assert table_of(page)[-1] == ["v100-32gb", "no plan fits"]
    assert "  v100-32gb: spec.tuning.space allows no plan: v100-32gb has no bf16; use fp16 or fp32" in page


def test_without_a_gpu_that_is_sure_to_fit_the_command_fails(tmp_path: Path, capsys: Captured) -> None:
    tight = write_job(tmp_path, job(tuning={"headroom": "20%", "space": {"precision": ["bf16"]}}))
    assert main(["plan", tight, "--gpu", "l4-24gb,a10-24gb", "--gpu-hour-price", "l4-24gb=0.5"]) == 1
    page = capsys.readouterr().out
    first, second = table_of(page)
    assert (first[0], second[0]) == ("l4-24gb", "a10-24gb")
    assert first[1].endswith(" (may fit)")
    assert "May fit: only a probe can tell\n  l4-24gb: the smallest plan, " in page


def test_gpus_that_may_fit_come_after_those_that_are_sure_to_fit(tmp_path: Path, capsys: Captured) -> None:
    tight = write_job(tmp_path, job(tuning={"headroom": "20%", "space": {"precision": ["bf16"]}}))
    arguments = ["--gpu", "l4-24gb,a100-80gb", "--gpu-hour-price", "l4-24gb=0.01,a100-80gb=2"]
    assert main(["plan", tight, *arguments]) == 0
    rows = table_of(capsys.readouterr().out)
    assert [row[0] for row in rows] == ["a100-80gb", "l4-24gb"]
    assert float(rows[1][-1].removeprefix("$")) < float(rows[0][-1].removeprefix("$"))


def test_a_virtual_job_is_compared_by_memory_alone(tmp_path: Path, capsys: Captured) -> None:
    file = priced(tmp_path, device="virtual")
    assert main(["plan", file, "--gpu", "a100-80gb,h100-80gb"]) == 0
    page = capsys.readouterr().out
    assert "The best plan on each GPU\n" in page
    assert not re.search(r"tokens/s|\$|step  ", page)


def test_a_price_of_the_command_replaces_that_of_the_job(tmp_path: Path, capsys: Captured) -> None:
    assert document(capsys, "plan", priced(tmp_path), "--gpu-hour-price", "a100-80gb=1")["gpuHourPrice"] == 1
    assert document(capsys, "plan", DENSE, "--gpu-hour-price", "a100-80gb=1")["chosen"]["costPerMillionTokens"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--gpu", "h10,a100-80gb,mi300x"], "--gpu: h10 is unknown (did you mean"),
        (["--gpu", "h10,a100-80gb,mi300x"], "; mi300x is unknown (known are b300-270gb, "),
        (["--gpu", "a100-80gb,,h100-80gb"], "--gpu: a name is missing in 'a100-80gb,,h100-80gb'; write names"),
        (["--gpu", "a100-80gb, A100-80gb"], "--gpu: A100-80gb is given twice; leave one out"),
        (["--gpu-hour-price", "h10=2"], "--gpu-hour-price: h10 is unknown (did you mean"),
        (
            ["--gpu", "h100-80gb,l4-24gb", "--gpu-hour-price", "a100-80gb=2"],
            "--gpu-hour-price: a100-80gb has a price, and the job is planned for h100-80gb, l4-24gb; leave it out",
        ),
        (["--gpu", "h100-80gb,l4-24gb", "--top", "3"], "--top is for the plans of one GPU, and --gpu names 2; leave"),
        (["--gpu", "h100-80gb,l4-24gb", "--plot", "a.png"], "--plot is for the plans of one GPU, and --gpu names 2"),
        (["--gpu", "h100-80gb,l4-24gb", "--timeline", "a.html"], "--timeline is for the plans of one GPU"),
    ],
)
def test_gpus_and_prices_that_cannot_be_are_refused(arguments: list[str], problem: str, capsys: Captured) -> None:
    assert problem in refusal_message(capsys, "plan", DENSE, *arguments)


def test_a_virtual_gpu_has_no_price_to_give(tmp_path: Path, capsys: Captured) -> None:
    said = refusal_message(capsys, "plan", priced(tmp_path, device="virtual"), "--gpu-hour-price", "a100-80gb=2")
    assert "--gpu-hour-price: the job is for device virtual, whose speed is not predicted; leave it out" in said


def test_a_price_without_a_product_shows_the_expected_form(capsys: Captured) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["plan", DENSE, "--gpu-hour-price", "2.5"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "argument --gpu-hour-price: 2.5 is no price; write NAME=DOLLARS, like h100-80gb=2.5" in said


@pytest.mark.parametrize("price", [0, -1, "2.5", True, 1e7])
def test_a_price_is_a_number_above_0(price: Any, tmp_path: Path, capsys: Captured) -> None:
    assert main(["plan", priced(tmp_path, price)]) == 2
    assert "spec.resources.gpuHourPrice: " in capsys.readouterr().err
