"""Play one load against chosen subjects and print a table: `python -m bench.schedule --help`.

For ablations and for looking; the bench `schedule-real` makes the claims.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from bench.harness.processes import end_on_sigterm
from bench.harness.run import Run
from bench.schedule.compare import SLO_FACTOR, play, table
from bench.schedule.load import LIGHT, OVERSUBSCRIBED, SOURCES, load_of
from bench.schedule.measure import Outcome
from bench.schedule.rules import RULES
from bench.schedule.speed import Speed, bounds, measure_speed
from bench.schedule.subjects import Room
from bench.schedule.variants import subject

LEVELS = {level.name: level for level in (OVERSUBSCRIBED, LIGHT)}
CACHE = Path.home() / ".cache" / "bedplate-bench"


def main() -> None:
    """Read the command line, play, print."""
    parser = argparse.ArgumentParser(prog="python -m bench.schedule", description=__doc__)
    parser.add_argument(
        "subjects",
        nargs="+",
        help="bedplate, pinned, sglang-router, vllm-router, probe, probe-advanced; settings after "
        "a colon: bedplate:running_max=2,slots=8 pinned:batch_tokens=128; other rules of the core "
        f"after a slash: bedplate/oldest, of {', '.join(RULES)}",
    )
    parser.add_argument("--source", choices=[s.name for s in SOURCES], default="lmcache")
    parser.add_argument("--level", choices=LEVELS, default=OVERSUBSCRIBED.name)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--sessions", type=int, help="in place of the level's")
    parser.add_argument("--load", type=float, help="in place of the level's")
    parser.add_argument("--slo-factor", type=float, default=SLO_FACTOR)
    parser.add_argument("--speed", type=Path, help="file with the cards' speed: read, or written")
    parser.add_argument("--rows", type=Path, help="folder for every turn of every play")
    options = parser.parse_args()
    level = LEVELS[options.level]
    if options.sessions:
        level = level._replace(sessions=options.sessions)
    if options.load:
        level = level._replace(load=options.load)
    (source,) = (s for s in SOURCES if s.name == options.source)
    with tempfile.TemporaryDirectory(prefix="bedplate-schedule-") as scratch:
        run = Run(False, True, CACHE, Path(scratch), tuple(options.seeds))
        speed = _speed(run, options.speed)
        for seed in options.seeds:
            load = load_of(source, level, speed, seed=seed)
            least = bounds(speed, load.workload, 2)
            run.say(f"{source.name}, {level.name}, seed {seed}: {load.kv_tokens} tokens a card")
            found: dict[str, Outcome] = {}
            for text in options.subjects:
                who = subject(text, load.kv_tokens)
                rows, outcome = play(
                    run, who, load.workload, f"{seed}", slo_factor=options.slo_factor
                )
                found[text] = outcome
                if options.rows:
                    options.rows.mkdir(parents=True, exist_ok=True)
                    name = f"{source.name}-{level.name}-{seed}-{text.replace('/', '_')}.json"
                    (options.rows / name).write_text(json.dumps(rows))
            print("\n".join(table(found, least)), flush=True)


def _speed(run: Run, path: Path | None) -> Speed:
    if path is not None and path.exists():
        return Speed(*json.loads(path.read_text()))
    speed = measure_speed(run, Room(4, 8_192))
    run.say(f"a card: {speed}")
    if path is not None:
        path.write_text(json.dumps(list(speed)))
    return speed


if __name__ == "__main__":
    end_on_sigterm()
    main()
