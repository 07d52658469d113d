"""Typed parsing of user-written facts. Every error names the path, the given value and what is allowed."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

# No dimension of a model is larger; a larger one is a typo.
_LARGEST = 10**9
# As the field `layers` allows, since some work is repeated per layer.
_DEEPEST = 10_000


class Facts:
    """A mapping whose null values count as absent.

    ``written`` maps renamed keys to the names that the user wrote; ``assumed`` are the keys with a default value.
    """

    def __init__(
        self, given: Any, where: str, written: Mapping[str, str] | None = None, assumed: Set[str] = frozenset()
    ) -> None:
        if not isinstance(given, Mapping):
            raise ValueError(f"{where}: {given!r} is not a mapping of facts; write it as fields with values")
        self.where = where
        self._written = written or {}
        self._assumed = assumed
        self._values: dict[str, Any] = {key: value for key, value in given.items() if value is not None}

    def over(self, defaults: Mapping[str, Any]) -> Facts:
        """The same facts, with defaults for missing ones."""
        assumed = self._assumed | (defaults.keys() - self._values.keys())
        return Facts({**defaults, **self._values}, self.where, self._written, assumed)

    def renamed(self, aliases: Mapping[str, str]) -> Facts:
        """The same facts with aliases replaced by the first names of their keys."""
        written = {aliases.get(key, key): key for key in self._values}
        return Facts({key: self._values[name] for key, name in written.items()}, self.where, written)

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def path(self, key: str) -> str:
        """The path of a key, for messages."""
        return f"{self.where}.{self._name(key)}"

    def keys(self) -> list[str]:
        """Every key that has a value."""
        return [str(key) for key in self._values]

    def value(self, key: str) -> Any:
        """The given value."""
        if key not in self._values:
            raise ValueError(f"{self.path(key)} is missing, and it has no default; set it")
        return self._values[key]

    def size(self, key: str) -> int:
        """A whole number of at least 1."""
        return self._whole(key, least=1)

    def count(self, key: str) -> int:
        """A whole number of at least 0."""
        return self._whole(key, least=0)

    def depth(self, key: str) -> int:
        """A number of layers."""
        return self._whole(key, least=1, most=_DEEPEST)

    def size_or(self, key: str, fallback: int) -> int:
        """A whole number of at least 1, with a default from other facts."""
        return self.size(key) if key in self else fallback

    def flag(self, key: str) -> bool:
        """True or false."""
        value = self.value(key)
        if not isinstance(value, bool):
            raise ValueError(f"{self.path(key)}: {value!r} is not true or false")
        return value

    def rate(self, key: str) -> float:
        """A number from 0 up to, not including, 1."""
        value = self.value(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
            raise ValueError(f"{self.path(key)}: {value!r} is not a number from 0 up to (not including) 1")
        return float(value)

    def cap(self, key: str) -> float:
        """A number above 0; 0 if absent."""
        if key not in self:
            return 0.0
        value = self.value(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= _LARGEST:
            raise ValueError(f"{self.path(key)}: {value!r} is not a number above 0")
        return float(value)

    def text(self, key: str) -> str:
        """A nonempty string."""
        value = self.value(key)
        if not isinstance(value, str) or not value:
            raise ValueError(f"{self.path(key)}: {value!r} is not a text")
        return value

    def choice(self, key: str, allowed: list[str]) -> str:
        """One of the allowed words."""
        value = self.value(key)
        if value not in allowed:
            raise ValueError(f"{self.path(key)}: {value!r} is not one of {', '.join(allowed)}")
        return str(value)

    def nested(self, key: str) -> Facts:
        """The facts one level down."""
        return Facts(self.value(key), self.path(key))

    def share(self, key: str, among: str) -> int:
        """The quotient of ``key`` divided ``among`` another fact, without a remainder."""
        total, parts = self.size(key), self.size(among)
        if total % parts:
            problem = f"{self.path(key)}: {total} cannot be divided among {parts} ({self._name(among)})"
            raise ValueError(f"{problem}{self.assuming(key, among)}")
        return total // parts

    def assuming(self, *keys: str) -> str:
        """The end of a message: which of its numbers are defaults."""
        assumed = [
            f"{self._name(key)} is not given, and {self._values[key]} is its default"
            for key in keys
            if key in self._assumed
        ]
        return "".join(f"; {each}" for each in assumed)

    def _name(self, key: str) -> str:
        return self._written.get(key, key)

    def _whole(self, key: str, least: int, most: int = _LARGEST) -> int:
        value = self.value(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{self.path(key)}: {value!r} is not a whole number of at least {least}")
        if value > most:
            raise ValueError(f"{self.path(key)}: {value} is more than any model has; give at most {most:,}")
        return value
