"""Read what a GGUF file says about itself: key-value metadata, without tensors.

Format: docs of ggml, `gguf.md`, versions 2 and 3, little endian. Only what is asked for is decoded;
long arrays are skipped, since a vocabulary of 262,144 strings would cost seconds in Python.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from bedplate.errors import ConfigError

Value = int | float | bool | str | list["Value"]

_SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_STRING, _ARRAY = 8, 9
_KEYS_MAX = 4096
_STRING_BYTES_MAX = 16 << 20


def read_metadata(path: Path, want: Callable[[str], bool]) -> dict[str, Value]:
    """Return the metadata values whose keys `want` accepts.

    Raises:
        ConfigError: the file is missing or not a GGUF of version 2 or 3.
    """
    try:
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise ConfigError(f"{path} is not a GGUF file")
            version, _tensors, keys = struct.unpack("<IQQ", file.read(20))
            if version not in (2, 3) or keys > _KEYS_MAX:
                raise ConfigError(f"{path}: GGUF version {version} is not supported")
            found: dict[str, Value] = {}
            for _ in range(keys):
                key = _string(file).decode()
                (kind,) = struct.unpack("<I", file.read(4))
                if want(key):
                    found[key] = _value(file, kind)
                else:
                    _skip(file, kind)
            return found
    except OSError as error:
        raise ConfigError(f"cannot read the model {path}: {error.strerror}") from error
    except (struct.error, ValueError, KeyError) as error:
        raise ConfigError(f"{path} is damaged: {error}") from error


def _string(file: BinaryIO) -> bytes:
    (length,) = struct.unpack("<Q", file.read(8))
    if length > _STRING_BYTES_MAX:
        raise ValueError(f"a string of {length} bytes")
    text = file.read(length)
    if len(text) != length:
        raise ValueError("it ends inside a string")
    return text


def _value(file: BinaryIO, kind: int) -> Value:
    if kind == _STRING:
        return _string(file).decode("utf-8", "replace")
    if kind == _ARRAY:
        item, count = struct.unpack("<IQ", file.read(12))
        if item in _SCALARS:
            layout = _SCALARS[item]
            size = struct.calcsize(layout)
            return list(struct.unpack(f"<{count}{layout[1]}", file.read(size * count)))
        return [_value(file, item) for _ in range(count)]
    layout = _SCALARS[kind]
    scalar: Value = struct.unpack(layout, file.read(struct.calcsize(layout)))[0]
    return scalar


def _skip(file: BinaryIO, kind: int) -> None:
    if kind == _STRING:
        _string(file)
    elif kind == _ARRAY:
        item, count = struct.unpack("<IQ", file.read(12))
        if item in _SCALARS:
            file.seek(struct.calcsize(_SCALARS[item]) * count, 1)
        else:
            for _ in range(count):
                _skip(file, item)
    else:
        file.seek(struct.calcsize(_SCALARS[kind]), 1)
