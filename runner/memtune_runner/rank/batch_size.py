"""Counts the samples and tokens of a batch from the shapes of a model's inputs.

Recognizes tensors by duck typing, so that it needs no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

# The names that model libraries give the input with the samples, in order of preference.
_SAMPLES = ("input_ids", "inputs_embeds", "pixel_values", "input_values", "input_features", "inputs", "x")
_DEEPEST = 4


class BatchSize(NamedTuple):
    """Rows are samples; tokens are the elements of all their sequences."""

    rows: int
    tokens: int


def batch_size(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> BatchSize | None:
    """Return the size of the batch in a model's arguments; None if they hold no tensor with rows, or graphs.

    The rows of graphs are their nodes, and how many graphs they are is not in any shape.
    """
    tensor = None if _are_graphs(args, kwargs) else _first_tensor(args, kwargs)
    return None if tensor is None else _size(tensor)


def _first_tensor(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    return next(_tensors((*_by_name(args, kwargs), *args, *kwargs.values()), 0), None)


class BatchSizes:
    """The sizes of a training's batches, whose samples may be columns, as torch's recurrent layers take them.

    They are if the first batch that trains has as many rows as a sequence has tokens, and the micro-batch's columns. An
    evaluation, or a step of a generation, may have that shape by chance; before the first training batch each decides
    for itself alone. A square is ambiguous; its rows count.
    """

    def __init__(self, micro_batch: int, sequence_length: int) -> None:
        self._height_and_width = (sequence_length, micro_batch)
        self._are_columns: bool | None = None

    def of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], trains: bool) -> BatchSize | None:
        """Return what `batch_size` does, with the samples in the dimension where they are."""
        if _are_graphs(args, kwargs) or (tensor := _first_tensor(args, kwargs)) is None:
            return None
        are_columns = self._are_columns
        if are_columns is None:
            length, micro_batch = self._height_and_width
            are_columns = length != micro_batch and tuple(tensor.shape[:2]) == (length, micro_batch)
            if trains:
                self._are_columns = are_columns
        size = _size(tensor)
        return BatchSize(int(tensor.shape[1]), size.tokens) if are_columns and len(tensor.shape) > 1 else size


def _are_graphs(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether the arguments have edges: by name, or as whole numbers in two rows right behind features in more."""
    if "edge_index" in kwargs:
        return True
    return any(
        nodes.shape[0] > edges.shape[0] == 2 and not edges.is_floating_point()
        for nodes, edges in pairwise(args)
        if _is_matrix(nodes) and _is_matrix(edges)
    )


def _is_matrix(value: Any) -> bool:
    return hasattr(value, "is_floating_point") and len(value.shape) == 2


def _by_name(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
    given = [kwargs, *(each for each in args if isinstance(each, Mapping))]
    return [each[name] for name in _SAMPLES for each in given if name in each]


def _tensors(values: Iterable[Any], depth: int) -> Iterator[Any]:
    for value in values:
        if hasattr(value, "is_floating_point") and hasattr(value, "shape"):
            if len(value.shape) > 0:
                yield value
        elif depth < _DEEPEST and isinstance(value, Mapping):
            yield from _tensors(value.values(), depth + 1)
        elif depth < _DEEPEST and isinstance(value, (list, tuple)):
            yield from _tensors(value, depth + 1)


def _size(tensor: Any) -> BatchSize:
    """Token ids are rows x length, embeddings rows x length x width; in any other tensor a row counts as one token."""
    shape = [int(each) for each in tensor.shape]
    has_length = len(shape) == 3 if tensor.is_floating_point() else len(shape) >= 2
    return BatchSize(shape[0], shape[0] * (shape[1] if has_length else 1))
