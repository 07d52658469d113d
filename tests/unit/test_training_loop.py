"""Whether a script has left its training loop, told from where its functions stood at a step and stand now."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from memtune_runner.watch.loop import Place, may_repeat, places

Mark = Callable[[], None]
Script = Callable[[Mark, Mark], None]


@contextmanager
def autocast() -> Iterator[None]:
    yield


def plain(step: Mark, ask: Mark) -> None:
    for _ in range(2):
        step()
    ask()


def within_blocks(step: Mark, ask: Mark) -> None:
    try:
        with autocast():
            for _ in range(2):
                with autocast(), suppress(KeyError):
                    step()
                try:
                    step()
                except ValueError:
                    continue
                finally:
                    len("")
            ask()
    except KeyError:
        pass


def before_a_break(step: Mark, ask: Mark) -> None:
    while True:
        step()
        if len("ab") == 2:
            ask()
            break


def after_the_epochs(step: Mark, ask: Mark) -> None:
    for _ in range(2):
        epoch(step)
    upload(ask)


def epoch(step: Mark) -> None:
    for _ in range(2):
        step()


def upload(ask: Mark) -> None:
    for _ in range(1):
        ask()


def after_a_call(step: Mark, ask: Mark) -> None:
    epoch(step)
    ask()


def after_a_retry(step: Mark, ask: Mark) -> None:
    while True:
        try:
            epoch(step)
            break
        except MemoryError:
            continue
    ask()


LEFT: list[Script] = [plain, within_blocks, before_a_break, after_the_epochs, after_a_call, after_a_retry]


def in_the_loop(step: Mark, ask: Mark) -> None:
    for _ in range(2):
        step()
        ask()


def in_the_data(step: Mark, ask: Mark) -> None:
    def batches() -> Iterator[int]:
        for number in range(2):
            yield number
            ask()

    for _ in batches():
        step()


def between_the_epochs(step: Mark, ask: Mark) -> None:
    for _ in range(2):
        epoch(step)
        upload(ask)


def with_more_to_come(step: Mark, ask: Mark) -> None:
    for number in range(3):
        step()
        if number == 1:
            ask()


def before_another_try(step: Mark, ask: Mark) -> None:
    for _ in range(2):
        try:
            epoch(step)
            ask()
            break
        except KeyError:
            continue


def in_a_loop_of_c(step: Mark, ask: Mark) -> None:
    def batches() -> Iterator[int]:
        yield 1
        ask()

    def one(_: int) -> None:
        step()

    list(map(one, batches()))


def in_the_step(step: Mark, ask: Mark) -> None:
    def one() -> None:
        step()
        ask()

    def optimizer() -> None:
        for _ in range(2):
            one()

    optimizer()


NOT_LEFT: list[Script] = [
    in_the_loop,
    in_the_data,
    between_the_epochs,
    with_more_to_come,
    before_another_try,
    in_a_loop_of_c,
    in_the_step,
]


def asked(script: Script) -> bool:
    """Whether the script may step again where it asks last."""
    outer = len(places(sys._getframe()))  # the tests' own loops are none of the script's
    stepped_at: list[Place] = []
    answers: list[bool] = []

    def step() -> None:
        stepped_at[:] = places(sys._getframe(1))[:-outer]

    script(step, lambda: answers.append(may_repeat(stepped_at, places(sys._getframe(1))[:-outer])))
    return answers[-1]


@pytest.mark.parametrize("script", LEFT)
def test_a_loop_that_nothing_leads_back_to_is_left(script: Script) -> None:
    assert not asked(script)


@pytest.mark.parametrize("script", NOT_LEFT)
def test_a_loop_that_may_go_on_is_not_left(script: Script) -> None:
    assert asked(script)
