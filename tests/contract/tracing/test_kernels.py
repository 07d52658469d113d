"""What the kernels and the autocast of a GPU make and keep, traced where there is none."""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from memtune.wire import trace as events
from memtune.wire.trace import Program
from memtune_runner.tracing import casts, trace_subject
from memtune_runner.tracing.factory import Subject
from memtune_runner.tracing.kernels import FEW_INDICES

ROWS, LENGTH, WIDTH, HEADS = 2, 4, 128, 8


class Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 8)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.table(tokens).sum()  # type: ignore[no-any-return]  # modules are called untyped


def program_of(
    model: Callable[[], nn.Module], inputs: Callable[[int], torch.Tensor], as_gpu: bool = True, numerics: str = "full"
) -> Program:
    """A model whose loss is its result."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        subject = Subject(model(), inputs, lambda built, batch: built(batch).sum())
        return trace_subject(subject, ROWS, LENGTH, [numerics], as_gpu).program(numerics)


@pytest.mark.parametrize(("loss_autocast", "kept"), [(False, {2}), (True, {4})])
def test_the_engine_sums_the_loss_of_a_model_of_16_bits_in_32(loss_autocast: bool, kept: set[int]) -> None:
    """Around the model alone: within it autocast is switched off, by FSDP's backend and by DeepSpeed."""

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return functional.log_softmax(model(batch), dim=-1).sum()

    with FakeTensorMode(allow_non_fake_inputs=True):
        subject = Subject(nn.Sequential(nn.Linear(WIDTH, 96), nn.Softmax(-1)), leaf(WIDTH), loss)
        program = trace_subject(subject, ROWS, LENGTH, ["half"], True, loss_autocast).program("half")
    within, around = 96 * 2, {96 * size for size in kept}
    assert saved(program) - {WIDTH * 2} == {within} | around


def saved(program: Program) -> set[int]:
    """The sizes, at one row, of what autograd saves."""
    sizes = program.sizes(1)
    return {sizes[number] for code, number in zip(program.codes, program.numbers, strict=True) if code == events.SAVE}


def leaf(*shape: int) -> Callable[[int], torch.Tensor]:
    return lambda rows: torch.zeros(rows, *shape, requires_grad=True)


def test_dropout_keeps_a_byte_an_element() -> None:
    assert saved(program_of(lambda: nn.Dropout(0.5), leaf(64))) == {64}


def test_rms_norm_keeps_its_input_and_a_number_per_row() -> None:
    program = program_of(lambda: nn.RMSNorm(64), leaf(3, 64))
    assert saved(program) == {3 * 64 * 4, 3 * 4}


@pytest.mark.filterwarnings("ignore:Accessing the data pointer")  # torch's of copying
@pytest.mark.parametrize("numerics", ["full", "autocast", "half"])
def test_weights_of_copied_modules_are_no_activations(numerics: str) -> None:
    """`nn.TransformerEncoder` copies its layer: every weight of a copy was kept a second time."""

    def copied() -> nn.Module:
        layer = nn.Linear(WIDTH, WIDTH)
        return nn.Sequential(layer, nn.GELU(), deepcopy(layer), nn.GELU(), deepcopy(layer))

    def anew() -> nn.Module:
        layers = [nn.Linear(WIDTH, WIDTH) for _ in range(3)]
        return nn.Sequential(layers[0], nn.GELU(), layers[1], nn.GELU(), layers[2])

    assert program_of(copied, leaf(WIDTH), numerics=numerics) == program_of(anew, leaf(WIDTH), numerics=numerics)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(WIDTH, WIDTH, batch_first=True)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.cells(hidden)[0]  # type: ignore[no-any-return]  # modules are called untyped


@pytest.mark.parametrize("numerics", ["full", "autocast", "half"])
def test_a_recurrent_network_keeps_its_gates(numerics: str) -> None:
    """The kernel of a CPU does, too, but says of what it keeps that it is nothing: LSTMs were a third low and more."""
    program = program_of(Recurrent, leaf(LENGTH, WIDTH), numerics=numerics)
    sizes = program.sizes(1)
    held = {number for code, number in zip(program.codes, program.numbers, strict=True) if code == events.SAVE}
    assert sum(sizes[number] for number in held) >= 4 * LENGTH * WIDTH * 2


@pytest.mark.parametrize(("length", "has_temporaries"), [(FEW_INDICES, True), (4, False)])
def test_an_embedding_sorts_many_indices_and_not_few(length: int, has_temporaries: bool) -> None:
    program = program_of(Embedding, lambda rows: torch.zeros(rows, length, dtype=torch.long))
    rows_in_fp32 = length * 8 * 4
    assert (program.sizes(1).count(rows_in_fp32) > program_cpu(length).sizes(1).count(rows_in_fp32)) is has_temporaries


def program_cpu(length: int) -> Program:
    return program_of(Embedding, lambda rows: torch.zeros(rows, length, dtype=torch.long), as_gpu=False)


class Shared(nn.Module):
    """One weight, used twice: its gradients are added up."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(64, 64))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden @ self.weight @ self.weight


def test_gradients_are_added_in_place_on_a_gpu() -> None:
    on_gpu, on_cpu = (program_of(Shared, leaf(64), as_gpu) for as_gpu in (True, False))
    of_a_weight = 64 * 64 * 4
    assert on_cpu.fixed.count(of_a_weight) - on_gpu.fixed.count(of_a_weight) == 1


def test_products_of_experts_are_as_large_as_their_rows() -> None:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.Parameter(torch.zeros(4, 8, 16))

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            ends = torch.full((4,), len(rows), dtype=torch.int32)
            return functional.grouped_mm(rows, self.weights, offs=ends)

    program = program_of(Experts, leaf(8))
    assert 16 * 4 in program.per_row
    assert 4 * 8 * 16 * 4 in program.fixed  # the gradient of all experts


class Applied(nn.Module):
    """A function of what goes in, and of a weight."""

    def __init__(self, function: Callable[[torch.Tensor, nn.Parameter], torch.Tensor], *shape: int) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.zeros(shape or (WIDTH, WIDTH)))

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return self.function(given, self.weight)


PLACES = 96
SCORES = HEADS * PLACES * PLACES  # of a row


def heads(hidden: torch.Tensor) -> torch.Tensor:
    split: torch.Tensor = hidden.unflatten(-1, (HEADS, -1))
    return split.transpose(1, 2)


def test_torchs_own_layers_attend_as_on_a_gpu() -> None:
    def layer() -> nn.Module:
        return nn.TransformerEncoderLayer(WIDTH, HEADS, WIDTH, batch_first=True)

    program = program_of(layer, leaf(PLACES, WIDTH), numerics="half")
    assert program.made_by.count(events.ATTENTION) == 3
    assert max(program.per_row) < SCORES * 2
    # Their dropouts keep a byte an element, too.
    assert PLACES * WIDTH in saved(program)


class Weighed(nn.MultiheadAttention):
    def forward(self, given: torch.Tensor) -> torch.Tensor:  # type: ignore[override]  # a module of one input
        seen: torch.Tensor = super().forward(given, given, given)[0]
        return seen


def test_attention_that_gives_its_weights_makes_the_scores() -> None:
    program = program_of(lambda: Weighed(WIDTH, HEADS, batch_first=True), leaf(PLACES, WIDTH), numerics="half")
    assert events.ATTENTION not in program.made_by
    assert SCORES * 2 in saved(program)


@pytest.mark.parametrize("shape", [lambda hidden: hidden, lambda hidden: heads(hidden).unflatten(1, (2, -1))])
def test_attention_of_other_than_four_dimensions_makes_the_scores(
    shape: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    def attend(hidden: torch.Tensor, weight: nn.Parameter) -> torch.Tensor:
        given = shape(hidden @ weight)
        return functional.scaled_dot_product_attention(given, given, given)

    program = program_of(lambda: Applied(attend), leaf(PLACES, WIDTH))
    assert events.ATTENTION not in program.made_by
    assert {PLACES * PLACES * 4, SCORES * 4} & saved(program)


@pytest.mark.parametrize("computed", [False, True])
def test_a_mask_that_learns_has_a_gradient_as_large_as_all_scores(computed: bool) -> None:
    def attend(hidden: torch.Tensor, weight: nn.Parameter) -> torch.Tensor:
        given, mask = heads(hidden), weight.exp() if computed else weight
        return functional.scaled_dot_product_attention(given, given, given, attn_mask=mask)

    program = program_of(lambda: Applied(attend, HEADS, PLACES, PLACES), leaf(PLACES, WIDTH))
    assert program.gradients == [0]
    assert program.per_row.count(SCORES * 4) == 1
    assert SCORES * 4 in program.fixed  # summed over rows


@pytest.mark.parametrize(("places", "kept"), [(64, 64), (60, 64)])
def test_a_boolean_mask_is_kept_as_numbers_whose_rows_are_aligned(places: int, kept: int) -> None:
    def attend(hidden: torch.Tensor, weight: nn.Parameter) -> torch.Tensor:
        given, mask = heads(hidden @ weight), torch.ones(places, places, dtype=torch.bool).tril()
        return functional.scaled_dot_product_attention(given, given, given, attn_mask=mask)

    assert places * kept * 4 in saved(program_of(lambda: Applied(attend), leaf(places, WIDTH)))


class Undifferentiated(torch.autograd.Function):
    """Of a weight it gives no gradient."""

    @staticmethod
    def forward(_ctx: object, hidden: torch.Tensor, _weight: torch.Tensor) -> torch.Tensor:
        return hidden + 1

    @staticmethod
    def backward(_ctx: object, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0], None


def test_a_weight_that_gets_no_gradient_has_none() -> None:
    assert program_of(lambda: Applied(Undifferentiated.apply), leaf(8)).gradients == []
    assert program_of(lambda: Applied(lambda hidden, _weight: hidden), leaf(8)).gradients == []


ELEMENTS = LENGTH * WIDTH


def under_autocast(function: Callable[[torch.Tensor], torch.Tensor]) -> list[int]:
    """Bytes a row of what a function of a product makes, by their number."""

    def apply(hidden: torch.Tensor, weight: nn.Parameter) -> torch.Tensor:
        return function(hidden @ weight)

    program = program_of(lambda: Applied(apply), leaf(LENGTH, WIDTH), numerics="autocast")
    made = program.codes[: program.codes.index(events.BACKWARD)].count(events.ALLOC)
    return program.sizes(1)[3:made]  # without the batch, the weight's copy and the batch's


PRODUCT = 2 * ELEMENTS


@pytest.mark.parametrize(
    ("function", "made"),
    [
        (lambda product: product.softmax(-1), [2, 4, 4]),
        (lambda product: product.pow(3), [2, 4, 4]),
        (lambda product: functional.rms_norm(product, [WIDTH]), [2, 4, 4 / WIDTH, 4]),
        (lambda product: functional.softplus(product), [2, 4, 4]),
        (lambda product: functional.mse_loss(product, product, reduction="none"), [2, 4, 4, 4]),
        (lambda product: product.sum(-1), [2, 4 / WIDTH]),
        (lambda product: product.cumsum(-1), [2, 4]),
        (lambda product: product.norm(dim=-1), [2, 4 / WIDTH]),
        (lambda product: product.norm(), [2]),
        (lambda product: product.softmax(-1, dtype=torch.bfloat16), [2, 2]),
        (lambda product: functional.gelu(product), [2, 2]),
        (lambda product: torch.cat([product, product.float()]), [2, 4, 8]),
        (lambda product: torch.addcmul(product, product, product.float()), [2, 4, 4, 4, 4]),
        (lambda product: functional.pad(product, (1, 1), "reflect"), [2, 2 * (WIDTH + 2) / WIDTH]),
    ],
)
def test_autocast_casts_as_on_a_gpu(function: Callable[[torch.Tensor], torch.Tensor], made: list[float]) -> None:
    rows = [size for size in under_autocast(function) if size >= 4 * LENGTH]
    assert rows == [each * ELEMENTS for each in made]


def test_a_loss_keeps_probabilities_in_both_formats() -> None:
    def lose(product: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(
            product.flatten(0, 1), torch.zeros(product.shape[:2], dtype=torch.long).flatten()
        )

    # LossNLL.cpp: log_softmax is told to stay in the format of the logits, and nll_loss is computed in fp32.
    assert [each for each in under_autocast(lose) if each >= PRODUCT] == [2 * ELEMENTS, 2 * ELEMENTS, 4 * ELEMENTS]


def test_a_weight_is_cast_once_where_the_cpus_autocast_does_not_cast_it() -> None:
    def apply(hidden: torch.Tensor, weight: nn.Parameter) -> torch.Tensor:
        return torch.einsum("blw,wv->blv", torch.einsum("blw,wv->blv", hidden, weight), weight)

    program = program_of(lambda: Applied(apply), leaf(LENGTH, WIDTH), numerics="autocast")
    forward = program.codes[: program.codes.index(events.BACKWARD)].count(events.ALLOC)
    assert program.sizes(1)[:forward].count(2 * WIDTH * WIDTH) == 1


def test_autocast_is_the_cpus_again_after_a_trace() -> None:
    program_of(lambda: nn.Linear(8, 8), leaf(8), numerics="autocast")
    narrow = torch.zeros(2, 2, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        assert narrow.softmax(-1).dtype is torch.bfloat16
        assert (
            functional.grid_sample(narrow[None, None], torch.zeros(1, 2, 2, 2), align_corners=False).dtype
            is torch.float32
        )


def test_the_tables_are_torchs_own() -> None:
    header = (Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h").read_text()

    def listed(table: str) -> list[str]:
        body = header.split(f"#define {table}(_)")[1].split("\n\n")[0]
        return [match.replace(", ", ".") for match in re.findall(r"_\(([A-Za-z0-9_, ]+)\)", body)]

    assert sorted(listed("AT_FORALL_LOWER_PRECISION_FP")) == sorted(casts.NARROW)
    assert sorted(listed("AT_FORALL_FP32")) == sorted(casts.WIDE)
    assert sorted(listed("AT_FORALL_FP32_SET_OPT_DTYPE")) == sorted(casts.WIDE_RESULT)
    assert sorted(listed("AT_FORALL_PROMOTE")) == sorted(casts.WIDEST)
    other = header.split("#define AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(_)")[1].split("\n\n")[0]
    assert sorted(re.findall(r'"(norm\.[A-Za-z_]+)"', other)) == sorted(casts.WIDE_RESULT_BY)
