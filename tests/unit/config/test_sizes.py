from __future__ import annotations

import pytest

from bedplate.config.sizes import format_size, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("17", 17),
        ("1B", 1),
        ("2kB", 2_000),
        ("512MiB", 536_870_912),
        ("4GiB", 4_294_967_296),
        (" 4 gib ", 4_294_967_296),
        ("1.5GB", 1_500_000_000),
        ("0.001KiB", 1),
        ("1TiB", 1_099_511_627_776),
    ],
)
def test_sizes_as_people_write_them(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "4 G", "1e9", "1.2345GiB", "٤GiB", "4GiB x"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is no size"):
        parse_size(text)


def test_what_is_no_text_passes() -> None:
    assert parse_size(5) == 5
    assert parse_size(None) is None


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0B"),
        (1023, "1023B"),
        (1024, "1KiB"),
        (8 << 20, "8MiB"),
        (4 << 30, "4GiB"),
        (1_610_612_736, "1.50GiB"),
        (1 << 40, "1TiB"),
    ],
)
def test_sizes_as_we_write_them(size: int, text: str) -> None:
    assert format_size(size) == text
