"""`bedplate serve` with other rules: `python -m bench.schedule.serve RULES [options of serve]`.

Only for ablations, and only from a fresh data folder: a journal that was written under other rules
is not replayed by the service.
"""

from __future__ import annotations

import sys
from functools import partial

from bedplate.cli.main import main
from bedplate.core.base import Base
from bedplate.runtime import recovery
from bench.schedule.rules import RULES

if __name__ == "__main__":
    chosen = RULES[sys.argv[1]]
    setattr(recovery, "Base", partial(Base, chosen))  # noqa: B010 - the name of a class there
    sys.argv = ["bedplate", *sys.argv[2:]]
    main()
