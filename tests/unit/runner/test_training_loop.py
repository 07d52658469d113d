"""Whether a script has left its training loop, from its call stacks at a step and now."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from memtune_runner.watch.training_loop import Place, TrainingLoop, may_repeat, places

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


def after_a_condition(step: Mark, ask: Mark) -> None:
    left = [3]

    def goes_on() -> bool:
        step()
        left[0] -= 1
        return left[0] > 0

    while goes_on():
        len("")
    ask()


def within_other_calls(step: Mark, ask: Mark) -> None:
    def run() -> int:
        epoch(step)
        ask()
        return 0

    len(str(run()))


def below_dispatchers(step: Mark, ask: Mark) -> None:
    def call(function: Callable[..., None], *given: object) -> None:
        function(*given)

    def train() -> None:
        epoch(step)
        ask()

    call(call, call, train)


def below_itself(step: Mark, ask: Mark) -> None:
    def stage(number: int) -> None:
        if number:
            stage(number - 1)
        else:
            epoch(step)
        if number == 1:
            ask()

    stage(2)


LEFT: list[Script] = [
    plain,
    within_blocks,
    before_a_break,
    after_the_epochs,
    after_a_call,
    after_a_retry,
    after_a_condition,
    within_other_calls,
    below_dispatchers,
    below_itself,
]


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


def in_a_condition(step: Mark, ask: Mark) -> None:
    left = [3]

    def goes_on() -> bool:
        step()
        left[0] -= 1
        return left[0] > 0

    while goes_on():
        if left[0] == 2:
            ask()


def in_the_first_of_the_epochs_of_a_condition(step: Mark, ask: Mark) -> None:
    left = [3]

    def goes_on() -> bool:
        epoch(step)
        left[0] -= 1
        return left[0] > 0

    while goes_on():
        if left[0] == 2:
            upload(ask)


def in_the_condition_itself(step: Mark, ask: Mark) -> None:
    left = [3]

    def goes_on() -> bool:
        left[0] -= 1
        if left[0] == 2:
            step()
        elif left[0] == 1:
            ask()
        return left[0] > 0

    while goes_on():
        len("")


def in_a_recursion(step: Mark, ask: Mark) -> None:
    def stage(number: int) -> None:
        if number:
            stage(number - 1)
            if number == 1:
                ask()
        step()

    stage(2)


def deeper_in_a_recursion(step: Mark, ask: Mark) -> None:
    def stage(number: int) -> None:
        if number == 1:
            ask()
        step()
        if number:
            stage(number - 1)

    stage(2)


NOT_LEFT: list[Script] = [
    in_a_condition,
    in_the_first_of_the_epochs_of_a_condition,
    in_the_condition_itself,
    in_a_recursion,
    deeper_in_a_recursion,
    in_the_loop,
    in_the_data,
    between_the_epochs,
    with_more_to_come,
    before_another_try,
    in_a_loop_of_c,
    in_the_step,
]


def asked(script: Script) -> bool:
    """Whether the script may step again from its last query."""
    outer = len(places(sys._getframe()))  # the tests' own loops do not count
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


class UploadError(Exception):
    """No script here catches it."""


def left_by(script: Script, *, steps: bool = True) -> bool:
    """Whether the script fails behind its loop, if its last query fails."""
    loop, queries = TrainingLoop(), 0

    def count() -> None:
        nonlocal queries
        queries += 1

    def fail() -> None:
        nonlocal queries
        queries -= 1
        if not queries:
            raise UploadError

    script(lambda: None, count)
    try:
        script(loop.stepped if steps else lambda: None, fail)
    except UploadError as error:
        return loop.is_left_by([error])
    raise AssertionError("it should have failed")


@pytest.mark.parametrize("script", LEFT)
def test_a_failure_after_a_loop_has_left_it(script: Script) -> None:
    assert left_by(script)


@pytest.mark.parametrize("script", [each for each in NOT_LEFT if each is not in_the_step])
def test_a_failure_in_a_loop_has_not_left_it(script: Script) -> None:
    assert not left_by(script)


def test_nothing_has_left_a_loop_that_made_no_step() -> None:
    assert not left_by(plain, steps=False)


def test_an_error_that_stands_for_one_of_the_loop_has_not_left_it() -> None:
    loop = TrainingLoop()

    def train() -> None:
        for _ in range(2):
            loop.stepped()
            raise UploadError

    def main() -> None:
        try:
            train()
        except UploadError:
            sys.exit(1)

    with pytest.raises(SystemExit) as caught:
        main()
    within = caught.value.__context__
    assert within is not None
    assert loop.is_left_by([caught.value])
    assert not loop.is_left_by([caught.value, within])
