"""Options that several commands share, so that they read the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="Configuration file; default: $BEDPLATE_CONFIG, or none."),
]
DataDirOption = Annotated[
    Path | None, typer.Option("--data-dir", help="Data folder; default: the configuration's.")
]
