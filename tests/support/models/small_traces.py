"""A traced model small enough to add up by hand: an embedding, four blocks, a head."""

from __future__ import annotations

from memtune.wire import trace as events
from memtune.wire.trace import Parameter, Program, Trace

KIB = 1024
WEIGHT = 4 * KIB  # bytes of each block's single weight, and of embedding and head, in fp32
BLOCKS = 4
TOKENS, HIDDEN, INNER = 1 * KIB, 4 * KIB, 16 * KIB  # bytes of a row's tensors


class Sketch:
    """Writes a program event by event."""

    def __init__(self) -> None:
        self.codes: list[str] = []
        self.numbers: list[int] = []
        self.per_row: list[int] = []
        self.fixed: list[int] = []
        self.made_by: list[str] = []
        self.inputs: list[list[int]] = []
        self.gradients: list[int] = []
        self.saves = 0

    def event(self, code: str, number: int) -> None:
        self.codes.append(code)
        self.numbers.append(number)

    def alloc(self, per_row: int, fixed: int = 0, made_by: str = events.OTHER) -> int:
        self.event(events.ALLOC, 0)
        self.per_row.append(per_row)
        self.fixed.append(fixed)
        self.made_by.append(made_by)
        return len(self.per_row) - 1

    def drop(self, *tensors: int) -> None:
        for tensor in tensors:
            self.event(events.DROP, tensor)

    def save(self, tensor: int) -> int:
        self.event(events.SAVE, tensor)
        self.saves += 1
        return self.saves - 1

    def use(self, *saves: int) -> None:
        for save in saves:
            self.event(events.UNPACK, save)

    def release(self, *saves: int) -> None:
        for save in saves:
            self.event(events.RELEASE, save)

    def gradient(self, parameter: int) -> None:
        tensor = self.alloc(0, WEIGHT)
        self.gradients.append(parameter)
        self.event(events.GRADIENT, tensor)

    def block(self, number: int, hidden: int) -> tuple[int, list[int]]:
        """Hidden to inner, then inner to hidden, both products: input and inner are saved."""
        self.inputs.append([hidden])
        self.event(events.ENTER, number)
        saves = [self.save(hidden)]
        inner = self.alloc(INNER, made_by=events.PRODUCT)
        saves.append(self.save(inner))
        temporary = self.alloc(INNER)
        out = self.alloc(HIDDEN, made_by=events.PRODUCT)
        self.drop(temporary, inner)
        self.event(events.LEAVE, number)
        self.drop(hidden)
        return out, saves

    def program(self) -> Program:
        return Program(
            codes="".join(self.codes),
            numbers=self.numbers,
            fixed=self.fixed,
            per_row=self.per_row,
            made_by="".join(self.made_by),
            inputs=self.inputs,
            gradients=self.gradients,
            weights=[WEIGHT] * (BLOCKS + 2),
            buffers=[512],
        )


def small_program(loss_bytes: int = 0) -> Program:
    """Forward, loss and backward of a micro-batch; an external loss keeps ``loss_bytes`` per row."""
    sketch = Sketch()
    tokens = sketch.alloc(TOKENS)
    sketch.event(events.CALL, 0)
    embedding = sketch.save(tokens)
    hidden = sketch.alloc(HIDDEN)
    saves = []
    for number in range(BLOCKS):
        hidden, kept = sketch.block(number, hidden)
        saves.append(kept)
    head = sketch.save(hidden)
    sketch.drop(hidden)
    sketch.event(events.RETURN, 0)
    around = sketch.alloc(loss_bytes)
    loss = sketch.alloc(0, 512)
    sketch.event(events.BACKWARD, 0)
    sketch.drop(around)
    sketch.event(events.REACHED, 0)
    sketch.use(head)
    gradient = sketch.alloc(HIDDEN)
    sketch.gradient(BLOCKS + 1)
    sketch.release(head)
    for number in reversed(range(BLOCKS)):
        gradient = _block_backward(sketch, number, gradient, saves[number])
    sketch.use(embedding)
    sketch.gradient(0)
    sketch.release(embedding)
    sketch.drop(gradient, loss, tokens)
    return sketch.program()


def _block_backward(sketch: Sketch, number: int, gradient: int, saves: list[int]) -> int:
    before, inner = saves
    sketch.use(inner)
    wide = sketch.alloc(INNER)
    sketch.release(inner)
    sketch.drop(gradient)
    sketch.use(before)
    narrow = sketch.alloc(HIDDEN)
    sketch.gradient(number + 1)
    sketch.release(before)
    sketch.drop(wide)
    return narrow


def small_trace(loss_bytes: int = 0) -> Trace:
    """The model, with one program for each numerics."""
    program = small_program(loss_bytes)
    elements = WEIGHT // 4
    names = ["embedding", *(f"blocks.{number}" for number in range(BLOCKS)), "head"]
    blocks = [-1, *range(BLOCKS), -1]
    parameters = [Parameter(name, elements, 32, True, block) for name, block in zip(names, blocks, strict=True)]
    return Trace(
        "Small", 8, "gpu", ["Small"], parameters, [BLOCKS], dict.fromkeys(("half", "autocast", "full"), program)
    )
