"""What is counted of the nodes of torch's execution trace, as it writes them."""

from __future__ import annotations

from collections import Counter
from itertools import count
from typing import Any

import pytest

from memtune.gpus.operations import Operation
from memtune_runner.emulated.step_operations import operations

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
    micro, update = operations(nodes)
    return micro + update


MM = "aten::mm(Tensor self, Tensor mat2) -> Tensor"


def mm(**options: Any) -> dict[str, Any]:
    return node("aten::mm", MM, [tensor(64, 128), tensor(128, 32)], [tensor(64, 32)], **options)


PRODUCT = Operation("product", "bf16", 2 * 64 * 128 * 32, 2 * (64 * 128 + 128 * 32 + 64 * 32), 64, 32)


def test_a_product_has_its_shape_and_what_calls_it_does_not_count() -> None:
    outer = node("aten::matmul", MM.replace("mm", "matmul"), [tensor(64, 128), tensor(128, 32)], [tensor(64, 32)], 7)
    assert counted(mm(parent=7), outer) == {PRODUCT: 1}


def test_a_product_counts_beside_the_copy_that_it_makes_of_its_input() -> None:
    schema = "aten::clone(Tensor self) -> Tensor"
    copy = node("aten::clone", schema, [tensor(64, 128)], [tensor(64, 128)], parent=7)
    outer = node("aten::matmul", MM.replace("mm", "matmul"), [tensor(64, 128), tensor(128, 32)], [tensor(64, 32)], 6)
    assert counted(copy, mm(number=7, parent=6), outer) == {PRODUCT: 1, Operation("kernel", "", 0, 4 * 64 * 128): 1}


def test_what_checkpointing_has_saved_is_not_computed_again() -> None:
    mode = node("PythonDispatchMode", "", [tensor(64, 128)], [], 8, parent=7)
    assert counted(mode, mm(number=7)) == {}
    assert counted(mm(parent=8), mode, mm(number=7)) == {PRODUCT: 1}


def test_products_of_a_batch_add_up() -> None:
    schema = "aten::bmm(Tensor self, Tensor mat2) -> Tensor"
    found = counted(node("aten::bmm", schema, [tensor(8, 64, 128), tensor(8, 128, 32)], [tensor(8, 64, 32)]))
    assert found == {PRODUCT._replace(flops=8 * PRODUCT.flops, moved=8 * PRODUCT.moved, batch=8): 1}


def test_views_allocations_and_the_host_ask_nothing_of_the_gpu() -> None:
    view = node("aten::view", "aten::view(Tensor(a) self, SymInt[] size) -> Tensor(a)",
                [tensor(8, 8, storage=5), plain([64], "GenericList[Int]")], [tensor(64, storage=5)])  # fmt: skip
    empty = node("aten::empty", "aten::empty(SymInt[] size) -> Tensor", [plain([8])], [tensor(8)])
    add = "aten::add(Tensor self, Tensor other) -> Tensor"
    on_host = node("aten::add", add, [tensor(8, device="cpu"), tensor(8, device="cpu")], [tensor(8, device="cpu")])
    hook = node("AddBackward0", "", [tensor(8)], [])
    assert counted(view, empty, on_host, hook) == {}


def test_kernels_move_what_they_read_and_write() -> None:
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


def collective(name: str, *values: Any, ranks: int = 8) -> dict[str, Any]:
    words = [plain([3, False], "GenericList[Int,Bool]"), plain(["0", "default_pg"]), plain(0), plain(name, "String")]
    numbers = [plain([]), plain([]), plain(0), plain(1), plain(ranks), plain(True, "Bool")]
    return node("record_param_comms", "", [*values, *words, *numbers], [])


@pytest.mark.parametrize(
    ("name", "kind", "sent"),
    [
        ("_allgather_base", "all-gather", 7 * 4000), ("_reduce_scatter_base", "reduce-scatter", 7 * 4000 // 8),
        ("allreduce", "all-reduce", 2 * 7 * 4000 // 8), ("broadcast", "broadcast", 4000),
    ],
)  # fmt: skip
def test_collectives_send_what_their_algorithm_does(name: str, kind: str, sent: int) -> None:
    found = counted(collective(name, tensor(1000, kind="float")), collective("wait"))
    assert found == {Operation(kind, "", 0, sent, batch=8): 1}
    assert counted(collective(name, tensor(1000, kind="float"), ranks=1)) == {}
    many = several(tensor(500, kind="float"), tensor(500, kind="float"))
    assert counted(collective(name, many)) == found


def test_what_the_optimizer_does_and_what_all_ranks_reduce_is_done_once_in_a_step() -> None:
    step = node("Optimizer.step#AdamW.step", "", [], [], number=10)
    reduce, gather = collective("allreduce", tensor(1000)), collective("_allgather_base", tensor(1000))
    again = collective("_allgather_base", tensor(1000))
    micro, update = operations([gather, mm(number=5), reduce, mm(number=12, parent=10), step, again])
    gathered = Operation("all-gather", "", 0, 14000, batch=8)
    assert micro == {gathered: 1, PRODUCT: 1}
    assert update == {PRODUCT: 1, Operation("all-reduce", "", 0, 3500, batch=8): 1, gathered: 1}
