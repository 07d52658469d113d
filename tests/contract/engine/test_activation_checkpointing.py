"""Activation checkpointing: the right blocks, the same gradients and random numbers, less memory."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from engine_ranks import LAYERS, decoder, global_batches, loss_of
from torch import nn
from torch.nn import functional
from torch.utils import checkpoint as torch_checkpoint

from memtune.plans.knobs import Checkpointing
from memtune_runner.engine import activation_checkpointing
from memtune_runner.engine.blocks import repeated_blocks
from memtune_runner.engine.offload import ActivationOffload

MODES = ["selective", "every-2", "every-3", "full"]
WIDTH = 32

pytestmark = pytest.mark.usefixtures("one_thread")


class Layer(nn.Module):
    """Counts its forward passes; has the signature of Hugging Face layers."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.runs = 0
        self.up, self.down, self.drop = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.Dropout(0.5)

    def forward(self, hidden: torch.Tensor, scale: float = 1.0) -> tuple[torch.Tensor]:
        self.runs += 1
        return (torch.add(hidden, self.drop(self.down(self.up(hidden).relu())), alpha=scale),)


class Model(nn.Module):
    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(layers))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            (hidden,) = layer(hidden, scale=1 + number / 4)
        return hidden


class Saved:
    """Counts the bytes that autograd keeps after a forward pass, each tensor once, without weights."""

    def __init__(self, model: nn.Module) -> None:
        self._weights = {each.data_ptr() for each in model.parameters()}
        self.kept: dict[int, int] = {}

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.data_ptr() not in self._weights:
            self.kept[tensor.data_ptr()] = tensor.nbytes
        return tensor


def model_with(mode: str, layers: int = 4) -> Model:
    torch.manual_seed(3)
    model = Model(layers)
    activation_checkpointing.apply(model, Checkpointing.parse(mode))
    return model


def gradients(model: nn.Module, passes: int = 1) -> list[torch.Tensor]:
    torch.manual_seed(5)
    for _ in range(passes):
        model(torch.randn(8, WIDTH)).square().mean().backward()
    return [each.grad for each in model.parameters() if each.grad is not None]


@pytest.mark.parametrize("mode", MODES)
def test_gradients_are_the_same_to_the_last_bit_dropout_included(mode: str) -> None:
    plain, checkpointed = gradients(model_with("none"), 2), gradients(model_with(mode), 2)
    assert len(plain) == 16
    assert all(torch.equal(one, other) for one, other in zip(plain, checkpointed, strict=True))


@pytest.mark.parametrize("mode", ["none", *MODES])
def test_every_block_is_recomputed_once(mode: str) -> None:
    model = model_with(mode)
    gradients(model)
    assert [layer.runs for layer in model.layers] == [1 if mode == "none" else 2] * 4


def test_kept_activations_shrink_with_the_mode() -> None:
    kept = {}
    for mode in ("none", "selective", "every-2", "full"):
        model = model_with(mode)
        saved = Saved(model)
        with torch.autograd.graph.saved_tensors_hooks(saved, lambda each: each):
            output = model(torch.randn(8, WIDTH))
        kept[mode] = sum(saved.kept.values())
        del output
    row_bytes = 8 * WIDTH * 4
    assert kept["full"] == 4 * row_bytes
    assert kept["every-2"] == 2 * row_bytes
    assert kept["none"] > kept["full"]


@pytest.mark.parametrize("mode", MODES)
def test_names_stay_and_without_gradients_nothing_is_kept(mode: str) -> None:
    model = model_with(mode)
    assert model.state_dict().keys() == Model().state_dict().keys()
    with torch.no_grad():
        model(torch.randn(8, WIDTH))
    assert [layer.runs for layer in model.layers] == [1, 1, 1, 1]


def test_a_failed_forward_pass_leaves_nothing_behind() -> None:
    model = model_with("every-2")
    with pytest.raises(RuntimeError):
        model(torch.randn(8, WIDTH + 1))
    assert all(torch.equal(*pair) for pair in zip(gradients(model), gradients(model_with("none")), strict=True))


@pytest.mark.parametrize("rows", [(8,), (4, 2)], ids=["matrix", "batch"])
def test_kept_results_must_not_change(rows: tuple[int, ...]) -> None:
    class InPlace(Layer):
        def forward(self, hidden: torch.Tensor, scale: float = 1.0) -> tuple[torch.Tensor]:
            hidden = hidden.view(*rows, WIDTH)
            wide = hidden @ self.up.weight.t()
            wide += self.up.bias * scale
            return (self.down(wide).view(8, WIDTH),)

    model = Model(0)
    model.layers.extend(InPlace() for _ in range(2))
    activation_checkpointing.apply(model, Checkpointing("selective"))
    with pytest.raises(RuntimeError, match="changed in place"):
        gradients(model)


def test_a_linear_layer_that_deepspeed_left_behind_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    from deepspeed.runtime.zero import partition_parameters  # type: ignore[import-untyped]  # DeepSpeed ships no types

    def gradients_of(mode: str) -> list[torch.Tensor]:
        model = decoder()
        activation_checkpointing.apply(model, Checkpointing.parse(mode))
        loss_of(model, next(global_batches())).backward()
        return [each.grad for each in model.parameters() if each.grad is not None]

    monkeypatch.setattr(functional, "linear", own := functional.linear)
    plain = gradients_of("none")
    monkeypatch.setattr(partition_parameters.dist, "get_rank", lambda: 0)
    partition_parameters.InsertPostInitMethodToModuleSubClasses()._enable_mem_efficient_linear()  # as stage 3 does
    assert functional.linear is not own
    assert all(torch.equal(one, other) for one, other in zip(plain, gradients_of("selective"), strict=True))
    assert functional.linear is own


def test_a_generator_that_takes_the_arguments_as_one_tuple_is_given_them_so(monkeypatch: pytest.MonkeyPatch) -> None:
    own = torch_checkpoint._checkpoint_without_reentrant_generator

    def newer(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, debug: bool = False) -> Any:
        return own(fn, True, torch_checkpoint.noop_context_fn, "default", debug, True, *args, **kwargs)

    monkeypatch.setattr(torch_checkpoint, "_checkpoint_without_reentrant_generator", newer)
    model = model_with("every-2")
    assert all(torch.equal(*pair) for pair in zip(gradients(model), gradients(model_with("none")), strict=True))
    assert [layer.runs for layer in model.layers] == [2] * 4


def test_a_model_without_repeated_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="repeated blocks of a model, and Linear has none"):
        activation_checkpointing.apply(nn.Linear(2, 2), Checkpointing("full"))
    assert activation_checkpointing.apply(nn.Linear(2, 2), Checkpointing("none")) == 0


def test_blocks_that_hand_nothing_on_cannot_be_grouped() -> None:
    class Beside(Model):
        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            return torch.stack([layer(hidden)[0] for layer in self.layers]).sum(0)

    model = Beside()
    activation_checkpointing.apply(model, Checkpointing("every", 2))
    with pytest.raises(ValueError, match="use a plan with checkpointing full"):
        model(torch.randn(2, WIDTH))


def test_layers_are_found_and_not_their_experts() -> None:
    class Routed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.ModuleList(Layer() for _ in range(8))

    model = nn.ModuleDict({"embed": nn.Embedding(4, 4), "layers": nn.ModuleList(Routed() for _ in range(3))})
    (row,) = repeated_blocks(model)
    assert [type(each) for each in row] == [Routed] * 3


def test_stages_of_different_width_are_entered() -> None:
    class Stage(nn.Module):
        def __init__(self, width: int, depth: int) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Layer(width) for _ in range(depth))

    rows = repeated_blocks(nn.ModuleList([Stage(8, 2), Stage(16, 4), Stage(32, 2)]))
    assert [len(row) for row in rows] == [2, 4, 2]


def test_a_row_of_plain_layers_is_no_row_of_blocks() -> None:
    assert repeated_blocks(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))) == []


@pytest.mark.parametrize("mode", ["none", "full"])
def test_offloaded_activations_come_back_and_weights_stay(mode: str) -> None:
    plain, model = gradients(model_with(mode)), model_with(mode)
    offload = ActivationOffload(smallest_bytes=0)
    with offload:
        offloaded = gradients(model)
    assert all(torch.equal(one, other) for one, other in zip(plain, offloaded, strict=True))
    weight = model.layers[0].get_parameter("up.weight")
    assert offload._pack(weight) is weight
    assert offload._pack(view := weight.t()) is view
    assert isinstance(offload._pack(torch.ones(3)), tuple)


def test_selective_keeps_every_second_product_and_the_attention() -> None:
    seen: list[str] = []

    class Counting(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    model = decoder()
    activation_checkpointing.apply(model, Checkpointing("selective"))
    batch = next(global_batches())
    with Counting():  # type: ignore[no-untyped-call]  # torch leaves the base class untyped
        loss = loss_of(model, batch)
        forward = Counter(seen)
        seen.clear()
        loss.backward()
    # A block has four products: qkv, out, up, down. The second and fourth are recomputed, where the fourth, being
    # last, stops the recomputation before it is needed.
    assert forward["addmm"] == 3 * LAYERS
    assert seen.count("addmm") == LAYERS
    assert not any("attention" in name and "backward" not in name for name in seen)


def _language_model(name: str) -> Any:
    sizes: dict[str, dict[str, int]] = {
        "llama": {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
        "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0},
    }
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(name, vocab_size=64, **sizes[name])
    auto: Any = transformers.AutoModelForCausalLM
    return auto.from_config(config).train()


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize("mode", ["selective", "every-2", "full"])
def test_a_model_of_transformers_keeps_no_cache_in_training_and_its_config_as_it_was(
    name: str, mode: str, tmp_path: Path
) -> None:
    ids = torch.arange(24).reshape(2, 12)
    plain, checkpointed = _language_model(name), _language_model(name)
    activation_checkpointing.apply(checkpointed, Checkpointing.parse(mode))
    for model in (plain, checkpointed):
        output = model(input_ids=ids, labels=ids)
        output.loss.backward()
    assert output.past_key_values is None
    for one, other in zip(plain.parameters(), checkpointed.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    with torch.no_grad():
        assert model(input_ids=ids, labels=ids).past_key_values is None
        assert model(input_ids=ids, use_cache=True).past_key_values is not None
        generated = model.eval().generate(ids, max_new_tokens=2, do_sample=False, return_dict_in_generate=True)
    assert generated.past_key_values is not None
    model.save_pretrained(tmp_path)
    assert transformers.AutoConfig.from_pretrained(tmp_path).use_cache is True


class _Caching(nn.Module):
    """A model whose code asks its config for the cache, and takes no argument for it."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(use_cache=True)
        self.layers = nn.ModuleList(_CachingBlock() for _ in range(2))
        self.cached: list[int] = []

    def forward(self, hidden: torch.Tensor, fails: bool = False) -> torch.Tensor:
        cache: list[torch.Tensor] | None = [] if self.config.use_cache else None
        for layer in self.layers:
            hidden = layer(hidden, cache)
        self.cached.append(len(cache or ()))
        if fails:
            raise ValueError("no batch")
        return hidden


class _CachingBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, hidden: torch.Tensor, cache: list[torch.Tensor] | None) -> torch.Tensor:
        if cache is not None:
            cache.append(hidden)
        projected: torch.Tensor = self.linear(hidden)
        return projected


def test_a_config_alone_is_switched_off_during_forward_passes_and_put_back() -> None:
    model, hidden = _Caching(), torch.ones(1, 4, requires_grad=True)
    activation_checkpointing.apply(model, Checkpointing.parse("full"))
    model(hidden).sum().backward()
    with pytest.raises(ValueError, match="no batch"):
        model(hidden, fails=True)
    with torch.no_grad():
        model(hidden)
    assert model.cached == [0, 0, 0]
    assert model.config.use_cache is True
