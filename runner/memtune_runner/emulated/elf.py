"""Reads what shared libraries need, and writes one of functions that only pretend, without a compiler."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

_SYMBOL, _DYNAMIC = struct.Struct("<IBBHQQ"), struct.Struct("<QQ")
_NEEDED, _HASH, _STRTAB, _SYMTAB, _STRSZ, _SYMENT, _SONAME, _RPATH, _RUNPATH = 1, 4, 5, 6, 10, 11, 14, 15, 29
_FUNCTION, _OBJECT = 0x12, 0x11  # global symbols
_CODE_BYTES = 32  # of one function
_PAGE = 1 << 16  # the largest of aarch64, whose kernels have pages of 4, 16 or 64 KiB
_DYNAMIC_SECTION, _SYMBOLS_SECTION = 6, 11
_FILE_HEADER_BYTES, _SEGMENT_HEADER_BYTES, _SEGMENTS = 64, 56, 4
_ADR_REACH = 1 << 20  # some ten times what the stubs for torch take
_DATA = ("emulated_stub_names", "emulated_stub_calls")


class Library(NamedTuple):
    """The symbols and libraries that a shared library needs."""

    undefined: frozenset[str]
    needed: tuple[str, ...]
    search_path: tuple[str, ...]


def read(path: Path) -> Library:
    """Read a shared library of this machine's kind."""
    with _mapped(path) as content:
        undefined = _symbols(content, is_defined=False)
        dynamic: dict[int, list[str]] = {_NEEDED: [], _RPATH: [], _RUNPATH: []}
        for strings, (tag, value) in _entries(content, _DYNAMIC_SECTION, _DYNAMIC):
            if tag in dynamic:
                dynamic[tag].append(_text(content, strings + value))
    paths = [entry for each in dynamic[_RPATH] + dynamic[_RUNPATH] for entry in each.split(":")]
    return Library(undefined, tuple(dynamic[_NEEDED]), tuple(paths))


def defined(path: Path) -> frozenset[str]:
    """Return the symbols that a shared library has."""
    with _mapped(path) as content:
        return _symbols(content, is_defined=True)


@contextmanager
def _mapped(path: Path) -> Iterator[mmap.mmap]:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        yield content


def _symbols(content: mmap.mmap, is_defined: bool) -> frozenset[str]:
    # Only of these is the name looked up: torch's libraries need a few thousand symbols, and have a hundred thousand.
    symbols = _entries(content, _SYMBOLS_SECTION, _SYMBOL)
    return frozenset(
        _text(content, strings + name)
        for strings, (name, _, _, section, _, _) in symbols
        if (section != 0) is is_defined
    )


def _entries(content: mmap.mmap, kind: int, entry: struct.Struct) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Return the entries of all sections of a kind, each with the place of its strings."""
    (start,), (size, count) = struct.unpack_from("<Q", content, 0x28), struct.unpack_from("<HH", content, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", content, start + size * place) for place in range(count)]
    for _, each, _, _, offset, length, link, *_ in sections:
        if each == kind:
            for fields in entry.iter_unpack(content[offset : offset + length]):
                yield sections[link][4], fields


def _text(content: mmap.mmap, start: int) -> str:
    return content[start : content.find(b"\0", start)].decode("ascii", "replace")


class Machine(NamedTuple):
    """A kind of processor: its number in a library's header, and two functions in its code.

    One returns 0. The other first adds 1 to a counter, which lies at a distance from the function.
    """

    number: int
    succeed: bytes
    count_call: Callable[[int], bytes]


_X86_SUCCEED = b"\x31\xc0\xc3"  # xor eax, eax; ret
_ARM_SUCCEED = struct.pack("<2I", 0x52800000, 0xD65F03C0)  # mov w0, #0; ret


def _x86_count(distance: int) -> bytes:
    # lock inc qword [rip + ...], which is relative to the next instruction
    return b"\xf0\x48\xff\x05" + struct.pack("<i", distance - 8) + _X86_SUCCEED


def _arm_count(distance: int) -> bytes:
    if not -_ADR_REACH <= distance < _ADR_REACH:
        raise ValueError(f"a counter lies {distance} bytes from its function, and adr reaches {_ADR_REACH}")
    address = 0x10000000 | (distance & 3) << 29 | (distance >> 2 & 0x7FFFF) << 5 | 16  # adr x16, ...
    # ldxr x17, [x16]; add x17, x17, #1; stxr w15, x17, [x16]; cbnz w15, to the ldxr
    return struct.pack("<5I", address, 0xC85F7E11, 0x91000631, 0xC80F7E11, 0x35FFFFAF) + _ARM_SUCCEED


# By the names that uname has for them.
MACHINES = {
    "x86_64": Machine(62, _X86_SUCCEED, _x86_count),
    "aarch64": Machine(183, _ARM_SUCCEED, _arm_count),
}


def stubs(
    machine: str, soname: str, needed: str, search_path: str, silent: Sequence[str] = (), counted: Sequence[str] = ()
) -> bytes:
    """Return a shared library whose functions return 0. It needs another library, in which symbols are searched, too.

    Its data `emulated_stub_names` are the names of counted functions, each with a zero byte, and a zero byte at their
    end; `emulated_stub_calls` are 64-bit counters of their calls.
    """
    strings, offsets = _joined([soname, needed, search_path, *silent, *counted, *_DATA])
    functions = [*silent, *counted]
    names = b"".join(name.encode("ascii") + b"\0" for name in counted) + b"\0"
    hashes = _hash_table([*functions, *_DATA])
    symbols_at = _FILE_HEADER_BYTES + _SEGMENTS * _SEGMENT_HEADER_BYTES
    strings_at = symbols_at + _SYMBOL.size * (len(functions) + len(_DATA) + 1)
    hashes_at = _rounded(strings_at + len(strings), _CODE_BYTES)
    code_at = _rounded(hashes_at + len(hashes), _CODE_BYTES)
    names_at = code_at + _CODE_BYTES * (len(counted) + 1)
    dynamic_at = _rounded(names_at + len(names), _PAGE)
    dynamic = b"".join(
        _DYNAMIC.pack(tag, value)
        for tag, value in (
            (_SONAME, offsets[0]), (_NEEDED, offsets[1]), (_RUNPATH, offsets[2]), (_HASH, hashes_at),
            (_STRTAB, strings_at), (_STRSZ, len(strings)), (_SYMTAB, symbols_at), (_SYMENT, _SYMBOL.size), (0, 0),
        )
    )  # fmt: skip
    calls_at = dynamic_at + len(dynamic)
    addresses = [code_at] * len(silent) + [code_at + _CODE_BYTES * (place + 1) for place in range(len(counted))]
    symbols = bytes(_SYMBOL.size) + b"".join(
        _SYMBOL.pack(name, kind, 0, 1, address, size)
        for name, kind, address, size in zip(
            offsets[3:],
            [_FUNCTION] * len(functions) + [_OBJECT] * len(_DATA),
            [*addresses, names_at, calls_at],
            [_CODE_BYTES] * len(functions) + [len(names), 8 * len(counted)],
            strict=True,
        )
    )
    number, succeed, count_call = MACHINES[machine]
    counters = range(calls_at, calls_at + 8 * len(counted), 8)
    counting = [count_call(to - at) for at, to in zip(addresses[len(silent) :], counters, strict=True)]
    code = b"".join(each.ljust(_CODE_BYTES, b"\0") for each in (succeed, *counting))
    content = bytearray(dynamic_at)
    content[:symbols_at] = _headers(number, dynamic_at, len(dynamic), 8 * len(counted))
    for place, part in ((symbols_at, symbols), (strings_at, strings), (hashes_at, hashes), (code_at, code)):
        content[place : place + len(part)] = part
    content[names_at : names_at + len(names)] = names
    return bytes(content) + dynamic


def _joined(texts: Sequence[str]) -> tuple[bytes, list[int]]:
    parts = [text.encode("ascii") + b"\0" for text in texts]
    return b"\0" + b"".join(parts), list(accumulate((len(part) for part in parts[:-1]), initial=1))


def _rounded(size: int, unit: int) -> int:
    return -size % unit + size


def _hash_table(names: Sequence[str]) -> bytes:
    """Return System V's hash table: chains of symbols, whose numbers start with 1."""
    buckets, chains = [0] * (len(names) + 1), [0] * (len(names) + 1)
    for number, name in enumerate(names, 1):
        bucket = _hash(name) % len(buckets)
        chains[number], buckets[bucket] = buckets[bucket], number
    return struct.pack(f"<{2 + 2 * len(buckets)}I", len(buckets), len(chains), *buckets, *chains)


def _hash(name: str) -> int:
    value = 0
    for byte in name.encode("ascii"):
        value = (value << 4) + byte
        value = (value ^ (value >> 24 & 0xF0)) & 0x0FFFFFFF
    return value


def _headers(machine: int, data_at: int, dynamic_bytes: int, zero_bytes: int) -> bytes:
    """Return the headers of a file that is mapped as it is: to be read and run, and from ``data_at`` to be written."""
    shared_object = 3
    file = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", shared_object, machine, 1, 0, _FILE_HEADER_BYTES, 0, 0,
        _FILE_HEADER_BYTES, _SEGMENT_HEADER_BYTES, _SEGMENTS, 0, 0, 0,
    )  # fmt: skip
    load, dynamic, stack, read, write, run = 1, 2, 0x6474E551, 4, 2, 1

    def segment(kind: int, flags: int, start: int, size: int, zeros: int = 0) -> bytes:
        return struct.pack("<IIQQQQQQ", kind, flags, start, start, start, size, size + zeros, _PAGE)

    return file + b"".join(
        (
            segment(load, read | run, 0, data_at),
            segment(load, read | write, data_at, dynamic_bytes, zero_bytes),
            segment(dynamic, read | write, data_at, dynamic_bytes),
            segment(stack, read | write, 0, 0),  # without it the stack would have to be executable
        )
    )
