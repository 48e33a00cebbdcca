"""What a run simulates: the cards of one supernode, its pool, and the policy of its core."""

from __future__ import annotations

from dataclasses import dataclass

from bedplate.core.limits import Policy
from bedplate.errors import ConfigError
from bedplate.perf.profile import CardProfile
from bedplate.twin.transfer import TailSpec
from bedplate.twin.workload.form import Workload


@dataclass(frozen=True, slots=True)
class CardSpec:
    """One card. `partition` is the fault domain that it shares with others."""

    id: str
    partition: str
    profile: CardProfile


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """The pool; all moves share `bytes_per_s`, and each waits `base_ns` and sometimes a `tail`.

    `size_bytes` 0 means that there is none.
    """

    size_bytes: int
    bytes_per_s: float
    base_ns: float
    tail: TailSpec | None = None


NO_POOL = PoolSpec(0, 1e9, 0.0)
"""Cards keep what they can; everything else is computed again."""


@dataclass(frozen=True, slots=True)
class Site:
    """One supernode. All its cards serve one model.

    The pool's size is that of `pool`, whatever `policy` says. `progress_tokens`: a running turn
    reports its progress after so many tokens, as the live service does after 16; 0 for never, which
    changes no decision of a run without faults, and is faster.
    """

    name: str
    cards: tuple[CardSpec, ...]
    policy: Policy
    pool: PoolSpec = NO_POOL
    progress_tokens: int = 0

    def check(self) -> None:
        """Refuse what cannot run.

        Raises:
            ConfigError: what is wrong, and of which card.
        """
        if not self.cards:
            raise ConfigError(f"site {self.name} has no cards")
        names = [card.id for card in self.cards]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"site {self.name} has two cards named {name}")
        models = sorted({card.profile.model for card in self.cards})
        if len(models) > 1:
            raise ConfigError(
                f"the cards of site {self.name} serve {', '.join(models)}: simulate one model a run"
            )
        if self.pool.size_bytes < 0 or self.pool.bytes_per_s <= 0 or self.pool.base_ns < 0:
            raise ConfigError(f"site {self.name}: its pool needs a bandwidth, and no value below 0")
        for card in self.cards:
            _check_profile(card.id, card.profile)


def _check_profile(card: str, profile: CardProfile) -> None:
    batching, cost = profile.batching, profile.step
    least = profile.running_max if batching.mixed else 1
    if batching.token_budget < least:
        raise ConfigError(
            f"card {card}: token_budget is {batching.token_budget}; the {least} sequences that may "
            "decode at once need one token each"
        )
    if batching.order not in ("arrival", "slot"):
        raise ConfigError(f"card {card}: order is {batching.order!r}, not arrival or slot")
    if cost.fixed_ns(1, 0) <= 1 or cost.fixed_ns(0, 1) <= 1:
        raise ConfigError(f"card {card}: a step of its profile lasts no longer than a nanosecond")
    if cost.pair_ns < 0 or cost.context_ns < 0 or profile.cell_ns < 0:
        raise ConfigError(f"card {card}: attention of its profile takes negative time")


def check_workload(workload: Workload) -> None:
    """Refuse a workload that cannot be asked.

    Raises:
        ConfigError: which session is wrong, and how.
    """
    seen: set[str] = set()
    for index, session in enumerate(workload.sessions):
        if not session.turns:
            raise ConfigError(f"workload {workload.name}: session {session.key} has no turns")
        if session.key in seen:
            raise ConfigError(f"workload {workload.name}: two sessions are named {session.key}")
        seen.add(session.key)
        if session.spawn is not None and not 0 <= session.spawn.session < index:
            raise ConfigError(
                f"workload {workload.name}: session {session.key} comes before its parent"
            )
