"""Field types and the base class of the configuration's sections."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

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
COUNT_MAX = 10_000_000
WEIGHT_MAX = 1_000
SLOTS_MAX = 4_096
BYTES_MAX = 1 << 50
PRICE_MICRO_MAX = 1 << 40
KV_TOKENS_MAX = 1 << 31
CONTEXT_TOKENS_MAX = 1 << 27
"""Of one session. A tenant's bucket falls by at most one call, and counts each token as a minute in
nanoseconds: it stays above -2^63."""
PER_MINUTE_MAX = 100_000_000
"""A full bucket of so many a minute, each counted as a minute in nanoseconds, is under 2^63."""
MONEY_MICRO_MAX = 1 << 53
"""Nine thousand million of the currency unit."""
TOKEN_SUM_MAX = 1 << 53
TOKEN_SECONDS_MAX = 10
"""Times the longest context, in nanoseconds, and added to the time of day, this is under 2^63."""
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
MODEL_NAME = r"^[A-Za-z0-9][A-Za-z0-9._:/@-]{0,127}$"
ADDRESS = r"^https?://[^\s/@]+(/\S*)?$"
SHA256 = r"^[0-9a-f]{64}$"
CURRENCY = r"^[A-Z]{3}$"
PATTERN_TEXT = {
    NAME: "1 to 64 letters, digits and . _ -, a letter or digit first",
    MODEL_NAME: "1 to 128 letters, digits and . _ : / @ -, a letter or digit first",
    ADDRESS: "an address without a user name, such as http://127.0.0.1:8000/v1",
    SHA256: "64 hexadecimal digits in lower case",
    CURRENCY: "three capital letters, such as CNY",
}
"""What each pattern asks for, in words for who wrote something else."""


def beside_file(path: Path, info: ValidationInfo) -> Path:
    """Read a relative path as relative to the folder of the file that names it."""
    folder = (info.context or {}).get("folder")
    path = path.expanduser()
    return path if folder is None else Path(folder, path)


def _known_zone(zone: str) -> str:
    if zone != "UTC":
        try:
            ZoneInfo(zone)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            nearest = get_close_matches(zone, available_timezones(), n=1)
            hint = f"; nearest: {nearest[0]}" if nearest else "; such as UTC or Asia/Shanghai"
            raise ValueError(f"there is no time zone {zone!r}{hint}") from error
    return zone


def _power_of_two(value: int) -> int:
    if value & (value - 1):
        raise ValueError("must be a power of two")
    return value


Bytes = Annotated[int, BeforeValidator(parse_size), Field(ge=0, le=BYTES_MAX)]
LocalPath = Annotated[Path, AfterValidator(beside_file)]
Name = Annotated[str, Field(pattern=NAME)]
ModelName = Annotated[str, Field(pattern=MODEL_NAME)]
Address = Annotated[str, Field(pattern=ADDRESS)]
Percent = Annotated[float, Field(ge=0, le=100)]
Count = Annotated[int, Field(ge=1, le=COUNT_MAX)]
Limit = Annotated[int, Field(ge=0, le=COUNT_MAX)]
PerMinute = Annotated[int, Field(ge=0, le=PER_MINUTE_MAX)]
Weight = Annotated[int, Field(ge=1, le=WEIGHT_MAX)]
TokenLimit = Annotated[int, Field(ge=0, le=KV_TOKENS_MAX)]
Prompts = Annotated[int, Field(ge=0, le=SLOTS_MAX)]
TokenSum = Annotated[int, Field(ge=0, le=TOKEN_SUM_MAX)]
Micro = Annotated[int, Field(ge=0, le=MONEY_MICRO_MAX)]
Zone = Annotated[str, AfterValidator(_known_zone)]
Slots = Annotated[int, Field(ge=1, le=SLOTS_MAX)]
ContextTokens = Annotated[int, Field(ge=1, le=CONTEXT_TOKENS_MAX)]
BlockTokens = Annotated[int, Field(ge=1, le=4_096), AfterValidator(_power_of_two)]
Price = Annotated[int, Field(ge=0, le=PRICE_MICRO_MAX)]
Seconds = Annotated[float, Field(gt=0, le=SECONDS_MAX)]
Wait = Annotated[float, Field(ge=0, le=SECONDS_MAX)]


def to_ns(seconds: float) -> int:
    """Return seconds as the integer nanoseconds of core."""
    return round(seconds * SECOND_NS)


class Section(BaseModel):
    """A part of the tree: frozen, and without room for keys that it does not know."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_by_name=True, validate_by_alias=True
    )
