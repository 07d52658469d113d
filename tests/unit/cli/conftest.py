"""What the tests of the command share: all have the same terminal."""

from terminals import _plain_terminal  # noqa: F401  # a fixture, found by its name
