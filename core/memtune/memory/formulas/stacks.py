"""Activations of all stacks: an encoder and a decoder, each at its own length."""

from __future__ import annotations

from dataclasses import replace

from memtune.memory.constants import Constants
from memtune.memory.formulas.activations import activation_terms
from memtune.memory.formulas.recipe import Recipe
from memtune.memory.formulas.shape import Shape
from memtune.memory.formulas.terms import Term

_LIVE = "layer in backward"


def stack_terms(shape: Shape, recipe: Recipe, constants: Constants) -> list[Term]:
    """What layers keep, and the layer being recomputed and differentiated: the larger of two stacks."""
    if not (shape.crossed and recipe.target_length):
        return activation_terms(shape, recipe, constants)
    biased = shape.biased_stacks // 2
    encoder_shape = replace(shape, layers=shape.layers - shape.crossed, crossed=0, biased_stacks=biased)
    encoder = activation_terms(encoder_shape, recipe, constants)
    decoder = activation_terms(replace(shape, layers=shape.crossed, biased_stacks=biased), recipe.decoder, constants)
    kept = [term for term in (*encoder, *decoder) if term.name != _LIVE]
    live = max(encoder, decoder, key=lambda terms: sum(term.bytes for term in terms if term.name == _LIVE))
    return [*kept, *(term for term in live if term.name == _LIVE)]
