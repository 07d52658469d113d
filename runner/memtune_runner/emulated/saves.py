"""Has a probe on the emulated GPU save files of full size in which only small tensors are written.

No kernel has computed the large ones, and a probe deletes its files as it ends: writing gigabytes would take most of
its time. A script may load small ones again, such as counters and the states of random number generators.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Any

from memtune.units import MIB
from memtune_runner.rank.imports import ImportWatch
from memtune_runner.rank.patches import Patches

_LARGE = MIB
# Whether this thread is in a save; others copy what they need.
_saves: ContextVar[bool] = ContextVar("saves", default=False)


def leave_holes(torch: ModuleType, imports: ImportWatch, patches: Patches) -> None:
    """Let torch.save and safetensors leave holes for what is large."""
    plain: Any = torch._C.PyTorchFileWriter
    if hasattr(plain, "write_record_metadata"):  # torch 2.6 and newer

        class Writer(plain):  # type: ignore[misc]  # known by its name only
            """Writes small records alone."""

            def write_record(self, name: str, data: Any, size: int) -> None:
                if size > _LARGE:
                    self.write_record_metadata(name, size)
                else:
                    super().write_record(name, data, size)

        patches.replace(torch._C, "PyTorchFileWriter", Writer)
        patches.wrap(torch.serialization, "_save", _save)
        patches.wrap(torch.UntypedStorage, "cpu", _on_host)
    imports.when_imported("safetensors.torch", lambda module: patches.wrap(module, "serialize_file", _serialize_file))


def _save(inherited: Any, *args: Any, **kwargs: Any) -> None:
    """Write a file of torch.save, which asks for a copy on the host of each storage, also of what it will not write."""
    before = _saves.set(True)
    try:
        inherited(*args, **kwargs)
    finally:
        _saves.reset(before)


def _on_host(inherited: Any, storage: Any) -> Any:
    return type(storage)(storage.nbytes()) if _saves.get() and storage.nbytes() > _LARGE else inherited(storage)


def _serialize_file(inherited: Any, tensors: Mapping[str, Any], filename: Any, metadata: Any = None) -> None:
    """Write a file of safetensors: the length of its header, the header, the tensors."""
    if not all(hasattr(each, "data_ptr") for each in tensors.values()):  # up to 0.7, as bytes that were copied
        inherited(tensors, filename, metadata=metadata)
        return
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    small, end = [], 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.data_len
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [start, end]}
        if tensor.data_len <= _LARGE:
            small.append((start, ctypes.string_at(tensor.data_ptr, tensor.data_len)))
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with Path(filename).open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        data = file.tell()
        for start, content in small:
            file.seek(data + start)
            file.write(content)
        file.truncate(data + end)
