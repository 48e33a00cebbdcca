"""Field types and the base class of the configuration's sections."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
)

from bedplate.config.sizes import parse_size
from bedplate.core.units import SECOND_NS

GIB = 1 << 30
MIB = 1 << 20
SECONDS_MAX = 31_536_000
"""A year: longer times are mistakes."""


def beside_file(path: Path, info: ValidationInfo) -> Path:
    """Read a relative path as relative to the folder of the file that names it."""
    folder = (info.context or {}).get("folder")
    path = path.expanduser()
    return path if folder is None else Path(folder, path)


Bytes = Annotated[int, BeforeValidator(parse_size), Field(ge=0)]
LocalPath = Annotated[Path, AfterValidator(beside_file)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
ModelName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@-]{0,127}$")]
Percent = Annotated[float, Field(ge=0, le=100)]
Positive = Annotated[int, Field(ge=1)]
Limit = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0, le=SECONDS_MAX)]


def to_ns(seconds: float) -> int:
    """Return seconds as the integer nanoseconds of core."""
    return round(seconds * SECOND_NS)


class Section(BaseModel):
    """A part of the tree: frozen, and without room for keys that it does not know."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_by_name=True, validate_by_alias=True
    )
