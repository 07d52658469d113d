"""What is counted of the nodes of torch's execution trace, as it writes them."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from io import StringIO
from itertools import count
from json import JSONDecodeError
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch.profiler import ExecutionTraceObserver

from memtune.gpus.operations import Operation, StepTime
from memtune.plans.plan import Plan
from memtune.wire.report import Device
from memtune.wire.run import RunKind
from memtune_runner.emulated import step_operations
from memtune_runner.emulated.statistics import EmulatedStatistics
from memtune_runner.emulated.step_operations import StepTrace, _nodes, operations
from memtune_runner.rank import bad_input
from memtune_runner.rank.patches import Patches
from memtune_runner.rank.settings import Settings
from memtune_runner.watch.hang import HangLimits, HangRule
from memtune_runner.watch.hooks import hook_torch
from memtune_runner.watch.watch import Watch

_NUMBERS = count(100)
_BF16 = "c10::BFloat16"


def tensor(*shape: int, storage: int = 0, kind: str = _BF16, device: str = "cuda:0") -> tuple[Any, Any, str]:
    """Return a tensor's value, shape and type, by default with a storage of its own."""
    elements = 1
    for size in shape:
        elements *= size
    width = {"float": 4, "long int": 8}.get(kind, 2)
    return [next(_NUMBERS), storage or next(_NUMBERS), 0, elements, width, device], list(shape), f"Tensor({kind})"


def plain(value: Any, kind: str = "Int") -> tuple[Any, Any, str]:
    return value, [], kind


def several(*tensors: tuple[Any, Any, str]) -> tuple[Any, Any, str]:
    values, shapes, kinds = zip(*tensors, strict=True)
    return list(values), list(shapes), f"GenericList[{','.join(kinds)}]"


def node(
    name: str, schema: str, inputs: list[Any], outputs: list[Any], number: int = 0, parent: int = 1
) -> dict[str, Any]:
    def told(values: list[Any]) -> dict[str, Any]:
        return {key: [each[place] for each in values] for place, key in enumerate(("values", "shapes", "types"))}

    attributes = [{"name": "tid", "value": 1}, {"name": "op_schema", "value": schema}]
    return {
        "id": number or next(_NUMBERS), "name": name, "ctrl_deps": parent,
        "inputs": told(inputs), "outputs": told(outputs), "attrs": attributes,
    }  # fmt: skip


def counted(*nodes: dict[str, Any]) -> Counter[Operation]:
    (found,) = operations(nodes)
    return found


MM = "aten::mm(Tensor self, Tensor mat2) -> Tensor"


def mm(**options: Any) -> dict[str, Any]:
    return node("aten::mm", MM, [tensor(64, 128), tensor(128, 32)], [tensor(64, 32)], **options)


PRODUCT = Operation("product", "bf16", 2 * 64 * 128 * 32, 2 * (64 * 128 + 128 * 32 + 64 * 32), 64, 32)


def test_a_product_counts_once_with_its_shape() -> None:
    outer = node("aten::matmul", MM.replace("mm", "matmul"), [tensor(64, 128), tensor(128, 32)], [tensor(64, 32)], 7)
    assert counted(mm(parent=7), outer) == {PRODUCT: 1}


def test_a_product_counts_beside_the_copy_that_it_makes_of_its_input() -> None:
    schema = "aten::clone(Tensor self) -> Tensor"
    copy = node("aten::clone", schema, [tensor(64, 128)], [tensor(64, 128)], parent=7)
    outer = node("aten::matmul", MM.replace("mm", "matmul"), [tensor(64, 128), tensor(128, 32)], [tensor(64, 32)], 6)
    assert counted(copy, mm(number=7, parent=6), outer) == {PRODUCT: 1, Operation("kernel", "", 0, 4 * 64 * 128): 1}


def test_saved_products_are_not_recomputed() -> None:
    mode = node("PythonDispatchMode", "", [tensor(64, 128)], [], 8, parent=7)
    assert counted(mode, mm(number=7)) == {}
    assert counted(mm(parent=8), mode, mm(number=7)) == {PRODUCT: 1}


def test_products_of_a_batch_add_up() -> None:
    schema = "aten::bmm(Tensor self, Tensor mat2) -> Tensor"
    found = counted(node("aten::bmm", schema, [tensor(8, 64, 128), tensor(8, 128, 32)], [tensor(8, 64, 32)]))
    assert found == {PRODUCT._replace(flops=8 * PRODUCT.flops, moved=8 * PRODUCT.moved, batch=8): 1}


def test_views_allocations_and_host_operations_cost_no_gpu_time() -> None:
    view = node("aten::view", "aten::view(Tensor(a) self, SymInt[] size) -> Tensor(a)",
                [tensor(8, 8, storage=5), plain([64], "GenericList[Int]")], [tensor(64, storage=5)])  # fmt: skip
    empty = node("aten::empty", "aten::empty(SymInt[] size) -> Tensor", [plain([8])], [tensor(8)])
    add = "aten::add(Tensor self, Tensor other) -> Tensor"
    on_host = node("aten::add", add, [tensor(8, device="cpu"), tensor(8, device="cpu")], [tensor(8, device="cpu")])
    hook = node("AddBackward0", "", [tensor(8)], [])
    assert counted(view, empty, on_host, hook) == {}


def test_kernels_move_the_bytes_that_they_read_and_write() -> None:
    add = node(
        "aten::add", "aten::add(Tensor self, Tensor other) -> Tensor", [tensor(1000), tensor(1000)], [tensor(1000)]
    )
    in_place = tensor(1000, storage=6)
    schema = "aten::mul_(Tensor(a!) self, Scalar other) -> Tensor(a!)"
    multiply = node("aten::mul_", schema, [in_place, plain(2.0, "Double")], [in_place])
    fill = node("aten::fill_", "aten::fill_(Tensor(a!) self, Scalar value) -> Tensor(a!)", [in_place], [in_place])
    found = counted(add, multiply, fill)
    assert found == {Operation("kernel", "", 0, size): 1 for size in (6000, 4000, 2000)}


def test_an_embedding_reads_its_rows_alone() -> None:
    schema = "aten::index_select(Tensor self, int dim, Tensor index) -> Tensor"
    rows = node(
        "aten::index_select", schema, [tensor(50_000, 64), plain(0), tensor(10, kind="long int")], [tensor(10, 64)]
    )
    assert counted(rows) == {Operation("kernel", "", 0, 2 * 2 * 10 * 64): 1}


def test_a_copy_from_the_host_takes_its_link() -> None:
    schema = "aten::copy_(Tensor(a!) self, Tensor src, bool non_blocking=False) -> Tensor(a!)"
    here = tensor(1000, storage=6)
    copy = node("aten::copy_", schema, [here, tensor(1000, device="cpu"), plain(False, "Bool")], [here])
    assert counted(copy) == {Operation("host", "", 0, 2000): 1}


@pytest.mark.parametrize(("causal", "share"), [(True, 2), (False, 1)])
def test_a_causal_mask_takes_half_of_attention_away(causal: bool, share: int) -> None:
    schema = (
        "aten::_flash_attention_forward(Tensor query, Tensor key, Tensor value, Tensor? cum_seq_q, Tensor? cum_seq_k, "
        "SymInt max_q, SymInt max_k, float dropout_p, bool is_causal, bool return_debug_mask, *, float? scale=None)"
        " -> Tensor"
    )
    heads = [tensor(2, 512, 4, 64) for _ in range(3)]
    rest = [plain("<None>", "None")] * 2 + [plain(512), plain(512), plain(0.0, "Double"), plain(causal, "Bool")]
    (found,) = counted(node("aten::_flash_attention_forward", schema, [*heads, *rest], [tensor(2, 512, 4, 64)]))
    assert (found.kind, found.flops) == ("attention", 4 * 2 * 4 * 512 * 512 * 64 // share)


def collective(name: str, *values: Any, ranks: int = 8, stride: int = 1) -> dict[str, Any]:
    words = [plain([3, False], "GenericList[Int,Bool]"), plain(["0", "default_pg"]), plain(0), plain(name, "String")]
    numbers = [plain([]), plain([]), plain(0), plain(stride), plain(ranks), plain(True, "Bool")]
    return node("record_param_comms", "", [*values, *words, *numbers], [])


@pytest.mark.parametrize(
    ("name", "kind", "sent"),
    [
        ("_allgather_base", "all-gather", 7 * 4000), ("_reduce_scatter_base", "reduce-scatter", 7 * 4000 // 8),
        ("allreduce", "all-reduce", 2 * 7 * 4000 // 8), ("broadcast", "broadcast", 4000),
    ],
)  # fmt: skip
def test_collectives_send_the_bytes_of_their_algorithm(name: str, kind: str, sent: int) -> None:
    found = counted(collective(name, tensor(1000, kind="float")), collective("wait"))
    assert found == {Operation(kind, "", 0, sent, batch=8): 1}
    assert counted(collective(name, tensor(1000, kind="float"), ranks=1)) == {}
    many = several(tensor(500, kind="float"), tensor(500, kind="float"))
    assert counted(collective(name, many)) == found


def test_operations_are_counted_by_micro_batch() -> None:
    begins = node("memtune: a micro-batch begins", "", [], [])
    reduce = Operation("all-reduce", "", 0, 3500, batch=8)
    assert operations([begins, mm(), begins, mm(), collective("allreduce", tensor(1000))]) == [
        {}, {PRODUCT: 1}, {PRODUCT: 1, reduce: 1},
    ]  # fmt: skip


def test_a_group_has_the_steps_between_its_ranks_and_is_not_counted_without() -> None:
    (found,) = counted(collective("allreduce", tensor(1000), ranks=2, stride=8))
    assert (found.batch, found.stride) == (2, 8)
    with pytest.raises(ValueError, match="equal steps"):
        counted(collective("allreduce", tensor(1000), ranks=2, stride=-1))
    with pytest.raises(ValueError, match="send"):
        counted(collective("send", tensor(1000), ranks=2))


@pytest.mark.parametrize("indent", ["    ", "      "])
def test_nodes_are_read_at_any_indentation(indent: str) -> None:
    def told(name: str, schema: str) -> str:
        attributes = f'[{{"name": "op_schema", "type": "string", "value": "{schema}"}}]'
        return f'{indent}{{\n{indent}  "id": 1, "name": "{name}",\n{indent}  "attrs": {attributes}\n{indent}}}'

    def read(*nodes: str) -> list[str]:
        text = '{\n  "schema": "1",\n  "nodes": [\n' + ",\n".join(nodes) + "\n  ]\n}\n"
        return [each["name"] for each in _nodes(StringIO(text))]

    assert read(told("aten::mm", "mm"), told('load "train"', ""), told("aten::add", "add")) == ["aten::mm", "aten::add"]
    with pytest.raises(JSONDecodeError):
        read(told('"aten::mm', "mm"))


def test_only_counted_nodes_are_read_with_their_tensors() -> None:
    view = node("aten::t", "aten::t(Tensor(a) self) -> Tensor(a)", [tensor(8, 4, storage=5)], [tensor(4, 8, storage=5)])
    nodes = [view, mm()]
    written = []
    for each in nodes:
        fields = [f'"{name}": {json.dumps(each[name])},' for name in ("inputs", "outputs")]
        attributes = json.dumps([{"type": "string", **attribute} for attribute in each["attrs"]])
        attributes = attributes.replace(
            '"type": "string", "name": "op_schema",', '"name": "op_schema", "type": "string",'
        )
        head = f'"id": {each["id"]}, "name": "{each["name"]}", "ctrl_deps": {each["ctrl_deps"]},'
        written.append("\n    ".join(["  {", head, *fields, f'"attrs": {attributes}']) + "\n  }")
    read = list(_nodes(StringIO('{\n  "nodes": [\n' + ",\n".join(written) + "\n  ]\n}\n")))
    assert operations(read) == operations(nodes) == [{PRODUCT: 1}]
    assert [set(each) >= {"inputs", "outputs"} for each in read] == [False, True]


def test_grouped_products_have_the_rows_of_all_groups_and_others_that_are_not_known_end_the_count() -> None:
    schema = "aten::_grouped_mm(Tensor self, Tensor mat2) -> Tensor"
    (found,) = counted(node("aten::_grouped_mm", schema, [tensor(64, 128), tensor(4, 128, 32)], [tensor(64, 32)]))
    assert found.flops == PRODUCT.flops
    recurrent = "aten::_cudnn_rnn(Tensor input, Tensor[] weight) -> Tensor"
    with pytest.raises(ValueError, match="_cudnn_rnn"):
        counted(node("aten::_cudnn_rnn", recurrent, [tensor(64, 128), several(tensor(128, 32))], [tensor(64, 32)]))


def test_a_transposed_convolution_counts_by_its_input() -> None:
    schema = "aten::cudnn_convolution_transpose(Tensor self, Tensor weight) -> Tensor"
    inputs = [tensor(1, 256, 8, 8), tensor(256, 16, 2, 2)]
    (found,) = counted(node("aten::cudnn_convolution_transpose", schema, inputs, [tensor(1, 16, 16, 16)]))
    assert found.flops == 2 * 8 * 8 * 256 * 16 * 2 * 2


@pytest.mark.parametrize(("asked", "products"), [([True, True, True], 2), ([False, True, True], 1)])
def test_the_gradients_of_a_convolution_count_as_they_are_asked_for_in_the_precision_of_cudnn(
    asked: list[bool], products: int
) -> None:
    schema = (
        "aten::convolution_backward(Tensor grad_output, Tensor input, Tensor weight, bool transposed, "
        "bool[3] output_mask) -> (Tensor, Tensor, Tensor)"
    )
    given = [tensor(*shape, kind="float") for shape in ((1, 16, 8, 8), (1, 3, 8, 8), (16, 3, 3, 3))]
    rest = [plain(False, "Bool"), plain(asked, "GenericList[Bool,Bool,Bool]")]
    (found,) = counted(node("aten::convolution_backward", schema, [*given, *rest], [tensor(16, 3, 3, 3)]))
    assert (found.precision, found.flops) == ("tf32", products * 2 * 16 * 8 * 8 * 3 * 3 * 3)


def test_products_run_in_tf32_whichever_of_its_settings_says_so() -> None:
    product = node("aten::mm", MM, [tensor(64, 128, kind="float"), tensor(128, 32, kind="float")], [tensor(64, 32)])
    assert [each.precision for each in counted(product)] == ["fp32"]
    backends: Any = torch.backends
    before = backends.fp32_precision
    try:
        backends.fp32_precision = "tf32"
        assert [each.precision for each in counted(product)] == ["tf32"]
    finally:
        backends.fp32_precision = before


@pytest.mark.parametrize(
    ("longest", "left", "causal", "keys"),
    [(128, -1, True, 64), (128, -1, False, 128), (512, 63, True, 60), (512, 63, False, 127)],
)
def test_attention_to_packed_sequences_or_within_a_window_reaches_fewer(
    longest: int, left: int, causal: bool, keys: int
) -> None:
    schema = (
        "aten::_flash_attention_forward(Tensor query, Tensor key, Tensor value, Tensor? cum_seq_q, Tensor? cum_seq_k, "
        "SymInt max_q, SymInt max_k, float dropout_p, bool is_causal, bool return_debug_mask, *, float? scale=None, "
        "SymInt? window_size_left=None, SymInt? window_size_right=None) -> Tensor"
    )
    sequences, heads = tensor(5, kind="int"), [tensor(512, 4, 64) for _ in range(3)]
    rest = [plain(longest), plain(longest), plain(0.0, "Double"), plain(causal, "Bool"), plain(False, "Bool")]
    window = [plain("<None>", "None"), plain(left), plain(left)]
    (found,) = counted(node("aten::_flash_attention_forward", schema, [*heads, sequences, sequences, *rest, *window],
                            [tensor(512, 4, 64)]))  # fmt: skip
    assert found.flops == 4 * 512 * 4 * 64 * keys


class NoPeaks:
    def fullest(self) -> int:
        return 0


class Sizes:
    made_up_sizes = 0


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], tuple[Watch, EmulatedStatistics]]]:
    """A probe's watch under a plan, to which the CPU is the emulated GPU."""
    bad_input.reset()  # another test's script may have been refused in this process
    monkeypatch.setattr(step_operations._Tensor, "is_on_gpu", property(lambda tensor: tensor.elements > 0))
    with ExitStack() as ended:

        def of(plan: str) -> tuple[Watch, EmulatedStatistics]:
            wanted = Plan.parse(plan)
            settings = Settings(
                wanted,
                RunKind.PROBE,
                "env",
                wanted.global_batch(1),
                8,
                device=Device.EMULATED,
                gpu_name="h100-80gb",
                gpu_memory_bytes=1 << 30,
            )
            # The driver would be asked to resize.
            monkeypatch.setattr("memtune_runner.emulated.statistics.resize", lambda _: None)
            watch, patches = Watch(settings, 0, None, HangRule(HangLimits())), Patches()
            statistics = EmulatedStatistics(settings, cast("Any", NoPeaks()), False, cast("Any", Sizes))
            watch.attach(statistics)
            ended.callback(statistics.stop_counting)
            ended.callback(patches.undo)
            hook_torch(watch, patches)
            return watch, statistics

        yield of


def train(optimizer_of: Callable[..., torch.optim.Optimizer], *before: Callable[[torch.nn.Module], object]) -> None:
    """Make a step of two micro-batches for each of those that run before it."""
    model = torch.nn.Linear(64, 32, bias=False)
    optimizer = optimizer_of(model.parameters())
    for each in before:
        each(model)
        for _ in range(2):
            model(torch.ones(16, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def nothing(_: object) -> None:
    """Between two steps."""


def products_of(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Note the rows of the products that are timed, with how often each occurs."""
    seen = Counter[int]()

    def timed(given: Counter[Operation], *_: object) -> StepTime:
        for each, times in given.items():
            seen[each.rows] += times * bool(each.flops)
        return StepTime(1.0, 0.0, 0.0, 0.0, 0.0, 0.0)

    monkeypatch.setattr("memtune_runner.emulated.statistics.step_time", timed)
    return seen


def test_an_optimizer_on_the_host_leaves_the_step_time_unknown(watched: Any) -> None:
    _, statistics = watched("bf16-z2-none-mb16x2-oopt")
    train(torch.optim.AdamW, nothing, nothing)
    assert statistics.counted_seconds() is None


def test_made_up_tensor_sizes_leave_the_step_time_unknown(watched: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _, statistics = watched("bf16-ddp-none-mb16x2")
    train(torch.optim.AdamW, nothing, nothing)
    assert statistics.counted_seconds()
    monkeypatch.setattr(Sizes, "made_up_sizes", 1)
    assert (statistics.counted_seconds(), statistics.step_time) == (None, None)


def test_an_optimizer_of_products_is_done_once_in_a_step(watched: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (_, two), seen = watched("bf16-ddp-none-mb16x2"), products_of(monkeypatch)
    train(torch.optim.Muon, nothing, nothing)
    of_two, update = Counter(seen), sum(seen.values()) - 4
    assert two.counted_seconds() == 1.0
    assert update > 10
    seen.clear()
    _, eight = watched("bf16-ddp-none-mb16x8")
    train(torch.optim.Muon, nothing, nothing)
    assert eight.counted_seconds() == 1.0
    assert sum(seen.values()) - sum(of_two.values()) == 6 * 2


def test_a_step_with_an_evaluation_is_not_counted(watched: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def evaluate(model: torch.nn.Module) -> None:
        with torch.no_grad():
            model(torch.ones(16, 64))

    _, statistics = watched("bf16-ddp-none-mb16x2")
    train(torch.optim.SGD, nothing, evaluate, nothing)
    assert statistics.counted_seconds() is None
    assert "evaluated or saved" in capsys.readouterr().err


def test_a_step_that_does_not_end_is_given_up_and_another_may_be_traced(
    watched: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    _, statistics = watched("bf16-ddp-none-mb16x2")
    train(torch.optim.SGD, nothing)
    statistics.stop_counting()
    assert "it did not end" in capsys.readouterr().err
    trace = StepTrace()
    torch.ones(8) + torch.ones(8)
    assert sum(sum(trace.stop(), Counter()).values())


def test_torch_does_not_warn_of_the_trace(capfd: pytest.CaptureFixture[str]) -> None:
    trace = StepTrace()
    with pytest.raises(ValueError, match="has none"):
        trace.stop()
    StepTrace().close()
    assert capfd.readouterr().err == ""


def test_other_lines_are_shown_and_so_is_what_torch_says_of_a_trace_of_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    plain = ExecutionTraceObserver.start

    def start(observer: ExecutionTraceObserver) -> None:
        os.write(2, b"one line\n")
        plain(observer)
        os.write(2, b"another line")

    monkeypatch.setattr(ExecutionTraceObserver, "start", start)
    StepTrace().close()
    assert capfd.readouterr().err == "one line\nanother line"
    monkeypatch.undo()
    own = ExecutionTraceObserver().register_callback(str(tmp_path / "own.json"))
    own.start()
    own.unregister_callback()
    assert re.findall(r"\w+ Execution Trace Observer", capfd.readouterr().err) == [
        "Enabling Execution Trace Observer",
        "Disabling Execution Trace Observer",
    ]


def test_unseen_micro_batches_leave_the_step_time_unknown(watched: Any, capsys: pytest.CaptureFixture[str]) -> None:
    _, statistics = watched("bf16-ddp-none-mb16x8")
    weight = torch.nn.Parameter(torch.ones(8, 8))
    optimizer = torch.optim.SGD([weight])
    for _ in range(2):
        (weight @ weight).sum().backward()
        optimizer.step()
    assert statistics.counted_seconds() is None
    assert "8 micro-batches do not follow from" in capsys.readouterr().err


@pytest.mark.parametrize("step", [0, 1])
def test_a_script_that_records_its_own_trace_keeps_it(
    watched: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], step: int
) -> None:
    _, statistics = watched("bf16-ddp-none-mb16x2")
    own = torch.profiler.ExecutionTraceObserver()

    def record(_: object) -> None:
        own.register_callback(str(tmp_path / "own.json"))
        own.start()

    train(torch.optim.SGD, *(record if number == step else nothing for number in range(2)))
    own.unregister_callback()
    assert statistics.counted_seconds() is None
    assert "an execution trace of its own" in capsys.readouterr().err
    assert "aten::mm" in (tmp_path / "own.json").read_text()


@pytest.mark.parametrize("other", [False, True])
def test_collectives_of_the_last_micro_batch_alone_are_done_once_in_a_step(
    watched: Any, monkeypatch: pytest.MonkeyPatch, other: bool
) -> None:
    reduce = Operation("all-reduce", "", 0, 100, batch=8)
    first, last = Counter({PRODUCT: 3, **({reduce: 1} if other else {})}), Counter({PRODUCT: 3, reduce: 1})
    seen = Counter[Operation]()
    monkeypatch.setattr("memtune_runner.emulated.statistics.step_time", lambda given, *_: seen.update(given))
    watched("bf16-ddp-none-mb16x8")[1]._timed([Counter({PRODUCT: 1}), first, last], 2)
    assert seen == {PRODUCT: 1 + 8 * 3, reduce: 8 if other else 1}
