"""What tells of a test: asked the moment it fails, be it in a fixture, and shown with the failure."""

from __future__ import annotations

from collections.abc import Callable, Generator

import pytest

_STORIES = pytest.StashKey[dict[str, Callable[[], str]]]()


def tells(node: pytest.Item, name: str, story: Callable[[], str]) -> None:
    node.stash.setdefault(_STORIES, {})[name] = story


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        report.sections += [(name, _told(story)) for name, story in item.stash.get(_STORIES, {}).items()]
    return report


def _told(story: Callable[[], str]) -> str:
    try:
        return story()
    except Exception as error:  # a cluster that is gone must not hide why the test failed
        return f"(not to be had: {error!r})"
