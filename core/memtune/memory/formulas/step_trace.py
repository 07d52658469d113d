"""Generates a step's allocation trace from its terms, to compare how allocator settings pack the same tensors.

The terms say how many bytes live when; here they are cut into tensors layer by layer, and `memtune.allocator` replays
them. Sizes stay those of the terms: only the ratio of two settings is used, so that what the trace leaves out (views,
small tensors, another order within a layer) cancels out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil

from memtune.allocator import AllocatorSettings, Event, replay, required_bytes
from memtune.memory.constants import Constants
from memtune.memory.formulas.activations import layer_bytes
from memtune.memory.formulas.recipe import Recipe
from memtune.memory.formulas.shape import Shape
from memtune.memory.formulas.terms import BACKWARD, DRIVER_OVERHEAD, FIRST_LAYER, FORWARD, INIT, LOSS, REDUCE, Term
from memtune.plans.knobs import Attention

# States of torch's optimizers appear with the first step, and cached blocks stay cut: the second step counts.
_STEPS = 2
# A deeper model is replayed with this many larger layers, to limit the time.
_DEEPEST = 256
_PRECISION = 1 / 256


def packing(trace: Sequence[Event], settings: AllocatorSettings) -> float:
    """The ratio by which ``max_split_size`` changes the bytes that must be reserved.

    It compares the smallest limits without a retry, because unused oversize blocks are released before a retry is
    counted (release_available_cached_blocks): a device with room to spare may show more reserved bytes.
    """
    unbounded = replace(settings, max_split_size_bytes=None)
    return required_bytes(trace, settings, _PRECISION) / replay(trace, None, unbounded).peak_reserved_bytes


def step_trace(shape: Shape, recipe: Recipe, terms: Iterable[Term], constants: Constants) -> list[Event]:
    """Two optimizer steps of the terms' tensors, without evaluation and saving."""
    sizes: dict[str, list[Term]] = {}
    for term in terms:
        if term.name not in DRIVER_OVERHEAD:
            sizes.setdefault(term.name, []).append(term)
    return _Tracer(_Cut(shape, recipe, constants), sizes).run()


@dataclass(frozen=True)
class _Cut:
    """How a component's bytes divide into tensors."""

    shape: Shape
    recipe: Recipe
    constants: Constants

    @property
    def depth(self) -> int:
        """The number of distinct layers."""
        return min(self.shape.layers, _DEEPEST)

    def parameters(self, total: float) -> list[list[float]]:
        """Bytes per parameter tensor: of the root, then of each layer. DeepSpeed flattens them into one."""
        if self.recipe.backend == "deepspeed":
            return [[total]]
        s = self.shape
        each = [s.query, s.query, s.key_value, s.key_value, *[s.ffn] * (3 if s.gated else 2)]
        layer = sum(each) * s.hidden
        root = max(s.total - s.layers * layer, 0)
        scale = total / (root + s.layers * layer)
        told = scale * s.hidden * s.layers / self.depth
        return [[scale * root / 2] * 2, *[[told * size for size in each]] * self.depth]

    def kept(self, total: float) -> list[list[float]]:
        """The activations that each layer keeps for its backward pass."""
        each = total / self.depth
        mode = self.recipe.checkpointing.mode
        if mode == "none":
            return [self.layer(each)] * self.depth
        return [[each / 6] * 6 if mode == "selective" else [each]] * self.depth

    def layer(self, total: float) -> list[float]:
        """The tensors that a whole layer keeps, scaled to a number of bytes."""
        parts = layer_bytes(self.shape, self.recipe)
        flash = layer_bytes(self.shape, replace(self.recipe, attention=Attention.FLASH)).attention
        scores, norms = max(parts.attention - flash, 0.0), 2 * self.shape.norms
        mlp = 4 if self.shape.gated else 2
        cut = [parts.norms / norms] * norms + [(parts.attention - scores) / 4] * 4 + [scores / 2] * 2
        cut += [parts.mlp / mlp] * mlp + [parts.masks / 2] * 2 + [parts.inputs / 4] * 4
        return [total * size / parts.total for size in cut if size]


@dataclass
class _Tracer:
    """Writes the events of training, component by component."""

    cut: _Cut
    terms: dict[str, list[Term]]
    events: list[Event] = field(default_factory=list)
    count: int = 0

    def run(self) -> list[Event]:
        for terms in self.terms.values():
            for term in terms:
                if term.phases == (INIT,):
                    self._pass([term.bytes])
                elif INIT in term.phases:
                    self._hold(*self._flat(self.cut.parameters(term.bytes)))
        for step in range(_STEPS):
            self._step(is_first=step == 0)
        return self.events

    def _step(self, is_first: bool) -> None:
        gradients: list[int] = []
        reducer = self._hold(*self._flat(self.cut.parameters(self._bytes("buckets", living=FORWARD))))
        accumulates = self.cut.recipe.accumulates
        for _ in range(2 if accumulates else 1):
            gradients += self._micro_batch(keeps_gradients=not gradients)
        if is_first and self._is_made_late("optimizer states"):
            self._hold(*self._flat(self.cut.parameters(self._bytes("optimizer states"))))
        self._pass(self._flat(self.cut.parameters(self._bytes("step transients"))))
        self._free([*gradients, *reducer])

    def _micro_batch(self, keeps_gradients: bool) -> list[int]:
        """Forward, loss and backward; returns the gradients, which live until the step."""
        casts = self._per_layer(self.cut.parameters(self._bytes("autocast copies")))
        kept_sizes = self.cut.kept(self._bytes("activations"))
        unit = self._gather([])
        kept: list[list[int]] = []
        for sizes, copies in zip(kept_sizes, casts, strict=True):
            kept.append(self._hold(*sizes, *copies))
            unit = self._gather(unit)
        self._pass(self._logits())
        forward, backward, reduce = (self._bytes("buckets", living=phase) for phase in (FORWARD, BACKWARD, REDUCE))
        buckets = self._hold(backward - forward)
        gradients: list[int] = []
        layers = self._per_layer(self.cut.parameters(self._bytes("gradients", living=REDUCE)))
        for tensors, sizes in zip(reversed(kept), reversed(layers), strict=True):
            self._pass(self._backward())
            if keeps_gradients:
                gradients += self._hold(*sizes)
            self._free(tensors)
            unit = self._gather(unit)
        self._pass([max(reduce - backward, 0.0)])
        self._free([*unit, *buckets])
        return gradients

    def _gather(self, before: list[int]) -> list[int]:
        """Gather the next unit while the previous one exists: the term counts two of them."""
        size = self._bytes("gathered units", living=BACKWARD) / 2
        after = self._hold(size)
        self._free(before)
        return after

    def _logits(self) -> list[float]:
        """The logits, and equally sized copies in the loss."""
        total, wide = self._bytes("logits", living=LOSS), self.cut.recipe.compute_bytes
        entry = wide + self.cut.constants.eager_loss_bytes
        return [total * wide / entry, *[total * (1 - wide / entry) / 3] * 3]

    def _backward(self) -> list[float]:
        """One layer's recomputation and gradients."""
        temporaries = ceil(self.cut.constants.backward_factor)
        *recomputed, last = [term.bytes for term in self.terms["layer in backward"] if not _is_last(term)]
        return [*self.cut.layer(sum(recomputed)), *[last / temporaries] * temporaries]

    def _per_layer(self, sizes: list[list[float]]) -> list[list[float]]:
        """Root and layers, or one flat tensor divided among the layers; the root's come with the last layer."""
        if len(sizes) == 1:
            return [[sizes[0][0] / self.cut.depth]] * self.cut.depth
        return [*sizes[1:-1], [*sizes[-1], *sizes[0]]]

    def _flat(self, sizes: list[list[float]]) -> list[float]:
        return [size for group in sizes for size in group]

    def _bytes(self, name: str, living: int | None = None) -> float:
        """The bytes of a component, except those held from the start."""
        terms = [term for term in self.terms.get(name, []) if INIT not in term.phases and not _is_last(term)]
        return sum(term.bytes for term in terms if living is None or living in term.phases)

    def _is_made_late(self, name: str) -> bool:
        return any(INIT not in term.phases for term in self.terms.get(name, []))

    def _hold(self, *sizes: float) -> list[int]:
        tensors = []
        for size in sizes:
            if size >= 1:
                self.events.append(Event("alloc", self.count, int(size)))
                tensors.append(self.count)
                self.count += 1
        return tensors

    def _pass(self, sizes: list[float]) -> None:
        """Tensors that exist for a moment."""
        self._free(self._hold(*sizes))

    def _free(self, tensors: list[int]) -> None:
        self.events += [Event("free", tensor) for tensor in tensors]


def _is_last(term: Term) -> bool:
    """Whether a term is only the remainder of others in the first layer; such a term needs no events."""
    return term.phases == (FIRST_LAYER,)
