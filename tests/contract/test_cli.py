"""The `memtune` command as a user meets it: pages, exit codes, and one clear message for bad input."""

from __future__ import annotations

import io
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from memtune_cli.main import main
from memtune_cli.screen import Screen

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
DENSE = str(ROOT / "examples" / "llama-7b-8gpu.yaml")
ONE_OF_EACH = {
    "llama-7b-8gpu": "bf16-z3-full-mb1x32",
    "llama-70b-2x8": "bf16-z3-full-mb1x8-oopt",
    "qlora-24gb": "bf16-ddp-full-mb1x16-adamw8bit",
    "quickstart": "fp32-ddp-full-mb8x8-sdpa",
}


@pytest.fixture(autouse=True)
def _plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NO_COLOR", raising=False)


def job(**changes: Any) -> dict[str, Any]:
    """The dense example with fields replaced: ``training__globalBatchSize=100``."""
    data: dict[str, Any] = yaml.safe_load(Path(DENSE).read_text())
    for path, value in changes.items():
        *parents, name = path.split("__")
        block = data["spec"]
        for parent in parents:
            block = block[parent]
        block[name] = value
    return data


def written(folder: Path, data: object) -> str:
    path = folder / "job.yaml"
    path.write_text(data if isinstance(data, str) else yaml.safe_dump(data))
    return str(path)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that must be refused, and give its message."""
    assert main(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("memtune: ")
    assert "Traceback" not in output.err
    return output.err


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_has_a_plan_that_fits(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(example)]) == 0
    page = capsys.readouterr().out
    for heading in ("Plans that fit", "Chosen: ", "GPU memory", "tokens/s", "Plans that do not fit", "the GPU has"):
        assert heading in page
    assert "\x1b" not in page
    assert max(map(len, page.splitlines())) <= 100


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_can_be_estimated_and_explained(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = ONE_OF_EACH[example.stem]
    assert main(["estimate", str(example), "--plan", plan]) == 0
    page = capsys.readouterr().out
    assert "It fits" in page
    assert "all of the GPU" in page
    assert main(["explain", str(example), "--plan", plan]) == 0
    formulas = capsys.readouterr().out
    assert "weights" in formulas
    assert "parameters" in formulas
    assert f"{plan}: each addend" in formulas


def test_explain_without_a_plan_takes_the_one_that_plan_chooses(capsys: pytest.CaptureFixture[str]) -> None:
    main(["plan", DENSE, "--format", "json"])
    chosen = json.loads(capsys.readouterr().out)["chosen"]["plan"]
    assert main(["explain", DENSE, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["plan"] == chosen


@pytest.mark.parametrize("command", [["plan"], ["estimate", "--plan", "bf16-z3-full-mb1x32"], ["explain"]])
def test_json_and_yaml_say_the_same(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    main([*command, DENSE, "--format", "json"])
    as_json = json.loads(capsys.readouterr().out)
    main([*command, DENSE, "--format", "yaml"])
    assert yaml.safe_load(capsys.readouterr().out) == as_json


@pytest.mark.parametrize("suffix", ["png", "svg"])
@pytest.mark.parametrize("command", [["plan"], ["estimate", "--plan", "bf16-z3-full-mb1x32"]])
def test_a_plot_is_a_picture(
    command: list[str], suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"memory.{suffix}"
    assert main([*command, DENSE, "--plot", str(path)]) == 0
    capsys.readouterr()
    assert path.read_bytes().startswith(b"\x89PNG" if suffix == "png" else b"<?xml")
    if suffix == "svg":
        text = path.read_text()
        assert "optimizer states" in text
        assert "GPU 79.2 GiB" in text


def test_no_plan_fits_a_small_gpu_and_the_page_says_what_would(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = written(tmp_path, job(resources={"gpusPerNode": 8, "gpuMemory": "12Gi"}))
    assert main(["plan", small]) == 1
    page = capsys.readouterr().out
    for part in ("No plan fits. Smallest: ", "the GPU's memory ends here", "What would fit", "use GPUs with at least"):
        assert part in page
    assert main(["plan", small, "--format", "json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["fitting"] == document["uncertain"] == []
    assert document["advice"]
    # Another GPU changes the verdict, not the job.
    assert main(["plan", small, "--gpu", "h100-80gb"]) == 0


@pytest.mark.parametrize("command", [["plan"], ["explain"], ["estimate", "--plan", "bf16-z3-full-mb1x32"]])
def test_a_gpu_that_had_to_be_guessed_is_told(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unknown = {"gpusPerNode": 8, "gpuMemory": "64Gi", "gpuProduct": "NVIDIA-H800"}
    file = written(tmp_path, job(resources=unknown))
    main([*command, file])
    page = " ".join(capsys.readouterr().out.split())
    assert "on 8 × GPU of 64.0 GiB (not known by name; speed as of the a100-80gb), 256" in page
    assert "Note: gpuProduct NVIDIA-H800 is unknown (did you mean" in page
    assert "reckoned as a GPU of 64.0 GiB, speed as of the a100-80gb" in page
    main([*command, file, "--format", "json"])
    document = json.loads(capsys.readouterr().out)
    assert document["gpu"]["guessed"]
    assert "NVIDIA-H800 is unknown" in document["notes"][0]
    # What the user names on the command line is no guess.
    main([*command, file, "--gpu", "h100-80gb", "--format", "json"])
    document = json.loads(capsys.readouterr().out)
    assert (document["gpu"]["guessed"], document["notes"]) == (False, [])


def test_an_estimate_that_does_not_fit_ends_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", DENSE, "--plan", "bf16-z1-none-mb32x1"]) == 1
    assert "It does not fit" in capsys.readouterr().out


def test_a_job_is_read_from_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(Path(DENSE).read_bytes())))
    assert main(["plan", "-"]) == 0
    assert "llama-7b-8gpu" in capsys.readouterr().out


def test_top_limits_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    main(["plan", DENSE, "--top", "3"])
    assert "--top" in capsys.readouterr().out
    for bad in ("0", "-1"):
        with pytest.raises(SystemExit) as ended:
            main(["plan", DENSE, f"--top={bad}"])
        assert ended.value.code == 2
        assert "give at least 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "messages"),
    [
        ({"training__globalBatchSize": 100}, ["spec.training.globalBatchSize", "100 cannot be divided among 8 GPUs"]),
        ({"training__globalBatch": 256}, ["spec.training.globalBatch", "globalBatchSize"]),
        ({"model": {"hfConfig": {"model_type": "mamba9"}}}, ["spec.model.hfConfig", "mamba9"]),
        ({"resources": {"gpusPerNode": 8}}, ["the GPU is unknown", "--gpu h100-80gb"]),
        (
            {"resources": {"gpusPerNode": 8, "gpuProduct": "NVIDIA-GB200"}},
            ["gpuProduct: NVIDIA-GB200 is unknown (did you mean b200-180gb or", "give gpuMemory", "--gpu h100-80gb"],
        ),
        ({"model__hfConfig__hidden_size": 4 * 10**24}, ["spec.model.hfConfig.hidden_size", "more than any model has"]),
        ({"tuning__space__precision": ["bf17"]}, ["spec.tuning.space.precision", "bf17"]),
    ],
)
def test_a_wrong_field_is_named_with_its_path(
    changes: dict[str, Any], messages: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, job(**changes))
    error = refused(capsys, "plan", file)
    assert all(message in error for message in [file, *messages])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1", "this is not YAML"),
        ("a: b: c", "job.yaml:1:5: this is not YAML"),
        ("spec:\n  a: 1\n  a: 2\n", "job.yaml:3:3: this is not YAML that a job can be read from: a is given twice"),
        ("a: 2026-13-45", "month must be in 1..12"),
        ("a: &a [*a]", "its aliases stand for more than 100,000 values, or for themselves"),
        ("spec: {3: 4}", "3 is a number, and a field's name is text"),
        ("", "the file holds nothing"),
        ("a: 1\n---\nb: 2\n", "the file holds 2 documents"),
        ("[1, 2]", "this is a list, not a MemoryTunedJob"),
        ("just words", "this is text, not a MemoryTunedJob"),
    ],
)
def test_a_file_that_is_no_job_is_refused(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(capsys, "plan", written(tmp_path, text))


def test_aliases_that_double_and_double_end_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    letters = "abcdefghijklmnop"
    lines = [f"{after}: &{after} [{', '.join([f'*{before}'] * 9)}]" for before, after in itertools.pairwise(letters)]
    assert "its aliases stand for more" in refused(capsys, "plan", written(tmp_path, "\n".join(["a: &a [x]", *lines])))


def test_an_anchor_that_is_used_twice_is_fine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = Path(DENSE).read_text().replace("precision: [bf16]", "precision: &p [bf16]")
    assert main(["plan", written(tmp_path, text.replace("[deepspeed, fsdp]", "&b [deepspeed, fsdp]"))]) == 0
    capsys.readouterr()


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "there is no such file" in refused(capsys, "plan", str(tmp_path / "none.yaml"))
    assert "this is a directory" in refused(capsys, "plan", str(tmp_path))
    binary = tmp_path / "model.bin"
    binary.write_bytes(b"\xff\xfe\x00\x01")
    assert "not UTF-8 text" in refused(capsys, "explain", str(binary))


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ("bf16-z3-full-mb1x2", "makes 16 sequences a step on 8 GPUs"),
        ("bf16-z9-full-mb1x32", "'z9' is not one of"),
        ("fp8-z3-full-mb1x32", "a100-80gb has no fp8"),
    ],
)
def test_a_plan_that_the_job_cannot_run_is_refused(plan: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in refused(capsys, "estimate", DENSE, "--plan", plan)


def test_other_bad_arguments_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "GPU 'b500' is unknown; use one of b200-180gb" in refused(capsys, "plan", DENSE, "--gpu", "b500")
    nowhere = str(tmp_path / "none" / "memory.png")
    assert "cannot be written" in refused(capsys, "plan", DENSE, "--plot", nowhere)
    assert "allows no plan: v100-32gb has no bf16" in refused(capsys, "plan", DENSE, "--gpu", "v100-32gb")
    with pytest.raises(SystemExit) as ended:
        main(["plan", DENSE, "--plot", "memory.pdf"])
    assert ended.value.code == 2
    assert "end it with .png or .svg" in capsys.readouterr().err


def test_help_documents_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--help"], ["plan", "--help"]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 0
        assert "exit codes:" in capsys.readouterr().out


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_colours_are_for_terminals_that_want_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert Screen.of(Terminal()).colours
    assert not Screen.of(io.TextIOWrapper(io.BytesIO(), "utf-8")).colours
    monkeypatch.setenv("NO_COLOR", "1")
    assert not Screen.of(Terminal()).colours


def test_a_terminal_gets_colours_in_lines_as_long_as_without(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["plan", DENSE])
    plain = capsys.readouterr().out
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    main(["plan", DENSE])
    assert "\x1b[1m" in terminal.getvalue()
    assert plain.splitlines()[0] in terminal.getvalue().replace("\x1b[1m", "").replace("\x1b[0m", "")


def test_an_old_encoding_gets_plain_signs(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    for command in (["plan", DENSE], ["explain", DENSE], ["estimate", DENSE, "--plan", "bf16-z3-full-mb1x32"]):
        assert main(command) == 0


@pytest.mark.parametrize("width", [60, 80, 140])
def test_pages_fit_the_screen(width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for command in (["plan"], ["explain"], ["estimate", "--plan", "bf16-z3-full-mb1x32"]):
        main([*command, DENSE])
        assert max(map(len, capsys.readouterr().out.splitlines())) <= width


GENERATING = {
    "batchSize": 8,
    "generates": True,
    "generation": {"concurrentSequences": 32, "sequenceTokens": 1000},
}


def test_a_job_that_generates_is_told_what_its_cache_leaves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, job(training__evaluation=GENERATING))
    for command in ("estimate", "explain"):
        main([command, path, "--plan", "bf16-z3-full-mb4x8"])
        page = capsys.readouterr().out
        # 32 sequences x 63 pages x 16 tokens x 512 KiB; of the last page of each, 8 tokens stay empty.
        assert "KV cache                 15.8 GiB  = 32 sequences x 63 pages of 16 tokens x 8 MiB" in page
        main([command, path, "--plan", "bf16-z3-full-mb4x8", "--format", "json"])
        generation = json.loads(capsys.readouterr().out)["generation"]
        assert generation["kvCacheBytes"] == 32 * 63 * 16 * 512 * 1024
        assert generation["wastedBytes"] == 32 * 8 * 512 * 1024
        left = generation["residentBytes"] + generation["kvCacheBytes"] + generation["leftBytes"]
        assert left == pytest.approx(79.2 * 1024**3, abs=2)


def test_a_job_that_generates_nothing_has_no_such_section(capsys: pytest.CaptureFixture[str]) -> None:
    main(["estimate", DENSE, "--plan", "bf16-z3-full-mb4x8"])
    assert "KV cache" not in capsys.readouterr().out


def test_a_model_that_cannot_generate_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bert = job(model__hfConfig={"model_type": "bert"}, training__evaluation=GENERATING)
    assert "spec.training.evaluation.generates: a model of kind encoder" in refused(
        capsys, "plan", written(tmp_path, bert)
    )


def test_mode_fixed_shows_the_plan_of_the_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fixed = job(tuning__mode="Fixed", tuning__plan="bf16-z3-full-mb4x8")
    assert main(["plan", written(tmp_path, fixed), "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [plan["plan"] for plan in document["fitting"]] == ["bf16-z3-full-mb4x8"]
    assert document["dropped"] == document["uncertain"] == []


def _run(code: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(str(ROOT / package) for package in ("core", "cli"))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONIOENCODING": "utf-8"}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_a_plan_imports_no_heavy_library() -> None:
    heavy = ("torch", "kopf", "kubernetes", "optuna", "deepspeed", "matplotlib", "numpy", "rich")
    code = (
        "import sys; from memtune_cli.main import main\n"
        f"main(['plan', {DENSE!r}])\n"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    ended = _run(code)
    assert ended.stdout.splitlines()[-1] == "[]", ended.stderr


def test_the_parser_alone_imports_neither_pydantic_nor_yaml() -> None:
    code = (
        "import sys; from memtune_cli.main import build_parser; build_parser()\n"
        "print([name for name in ('pydantic', 'yaml', 'memtune.predict') if name in sys.modules])"
    )
    assert _run(code).stdout.strip() == "[]"


def test_a_full_disk_is_told_and_a_closed_output_is_no_error() -> None:
    started = "import os, sys; from memtune_cli.main import main\n"
    full = _run(f"{started}os.dup2(os.open('/dev/full', os.O_WRONLY), 1)\nsys.exit(main(['plan', {DENSE!r}]))")
    assert (full.returncode, full.stderr) == (
        2,
        "memtune: standard output cannot be written: No space left on device\n",
    )
    closed = _run(f"{started}sys.stdout = None\nsys.exit(main(['plan', {DENSE!r}]))")
    assert (closed.returncode, closed.stderr) == (0, "")


def test_a_reader_that_goes_away_is_no_error() -> None:
    code = (
        "import os, sys; from memtune_cli.main import main\n"
        "reading, writing = os.pipe(); os.close(reading); os.dup2(writing, 1)\n"
        f"sys.exit(main(['plan', {DENSE!r}]))"
    )
    ended = _run(code)
    assert (ended.returncode, ended.stderr) == (0, "")
