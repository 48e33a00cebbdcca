"""Lets faults happen to a world, and end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from bedplate.core.ids import CardId, TurnId
from bedplate.core.states import RUNNING
from bedplate.errors import ConfigError
from bedplate.twin.card import VirtualCard
from bedplate.twin.faults import (
    NEVER,
    CardLost,
    CardSlow,
    Fault,
    GatewayRestarted,
    LinkLost,
    LinkSlow,
    PartitionLost,
    ToolSlow,
)
from bedplate.twin.heap import FAULT
from bedplate.twin.outcome import FaultRow
from bedplate.twin.world import World

_Losses = dict[CardId, int]
"""How often each card was lost so far, so that news of a loss is told from that of a later one."""
_Thing = tuple[type[Fault], str]
"""What breaks, in one way: the kind of the fault, and the name of card, partition or tool."""
_Broken = dict[_Thing, list[Fault]]
"""The faults that hold something now, in the order in which they began."""


class Struck:
    """A fault of a run, with the turns and the number of moves that it has cut so far."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.turns: set[TurnId] = set()
        self.moves = 0

    def row(self) -> FaultRow:
        """Return it for the outcome."""
        fault = self.fault
        names = (getattr(fault, name, "") for name in ("card", "partition", "tool"))
        return FaultRow(
            fault.kind,
            next(filter(None, names), ""),
            fault.at_ns,
            _end_ns(fault),
            len(self.turns),
            self.moves,
        )


def schedule(world: World, faults: Iterable[Fault]) -> list[Struck]:
    """Put the beginning and the end of each fault on the heap; return them, in the same order.

    Where one ends at the instant at which another begins, the end comes first.

    Raises:
        ConfigError: a fault names a card or partition that is not there, or does not end after it
            begins.
    """
    losses: _Losses = {}
    broken: _Broken = {}
    struck: list[Struck] = []
    effects: list[tuple[int, bool, Callable[[], None]]] = []
    for fault in faults:
        _check(world, fault)
        one = Struck(fault)
        struck.append(one)
        effects.append((fault.at_ns, True, partial(_begin, world, one, broken, losses)))
        end_ns = _end_ns(fault)
        if end_ns != NEVER:
            effects.append((end_ns, False, partial(_end, world, one, broken)))
    effects.sort(key=lambda effect: effect[:2])
    for at_ns, _, effect in effects:
        world.heap.at(world.heap.now_ns + at_ns, FAULT, _call, effect)
    return struck


def _end_ns(fault: Fault) -> int:
    return fault.until_ns if hasattr(fault, "until_ns") else fault.back_ns


def _call(effect: Callable[[], None]) -> None:
    effect()


def _check(world: World, fault: Fault) -> None:
    end_ns = _end_ns(fault)
    if fault.at_ns < 0 or (end_ns != NEVER and end_ns <= fault.at_ns):
        raise ConfigError(
            f"fault {fault}: it must begin at 0 or later, and end a nanosecond after that or later"
        )
    if isinstance(fault, (CardLost, CardSlow)) and fault.card not in world.cards:
        raise ConfigError(f"fault {fault}: there is no card {fault.card}")
    if isinstance(fault, (PartitionLost, LinkLost, LinkSlow)):
        known = sorted({card.partition for card in world.cards.values()})
        if fault.partition not in known:
            raise ConfigError(f"fault {fault}: the partitions are {', '.join(known)}")
    if isinstance(fault, (CardSlow, LinkSlow, ToolSlow)) and fault.factor <= 0:
        raise ConfigError(f"fault {fault}: factor must be above 0")
    if isinstance(fault, GatewayRestarted) and end_ns == NEVER:
        raise ConfigError(f"fault {fault}: the gateway must come back")


def _things(world: World, fault: Fault) -> list[_Thing]:
    """Return what a fault breaks; a lost partition breaks its cards."""
    if isinstance(fault, PartitionLost):
        return [(CardLost, card.id) for card in _cards(world, fault)]
    if isinstance(fault, (CardLost, CardSlow)):
        return [(type(fault), fault.card)]
    if isinstance(fault, (LinkLost, LinkSlow)):
        return [(type(fault), fault.partition)]
    if isinstance(fault, ToolSlow):
        return [(ToolSlow, fault.tool)]
    return [(GatewayRestarted, "")]


def _cards(world: World, fault: CardLost | PartitionLost) -> list[VirtualCard]:
    """Return the cards that a loss takes away."""
    if isinstance(fault, CardLost):
        return [world.cards[CardId(fault.card)]]
    return [card for card in world.cards.values() if card.partition == fault.partition]


def _begin(world: World, one: Struck, broken: _Broken, losses: _Losses) -> None:
    fault = one.fault
    for thing in _things(world, fault):
        broken.setdefault(thing, []).append(fault)
    _note(world, one)
    if isinstance(fault, (CardLost, PartitionLost)):
        _lose(world, one, losses)
    else:
        _strike(world, fault)


def _end(world: World, one: Struck, broken: _Broken) -> None:
    """Mend what no other fault holds; of those that still hold a thing, the last one does."""
    if isinstance(one.fault, (CardLost, PartitionLost)):
        # A card that hangs has taken others since.
        _note_turns(world, one, _cards(world, one.fault))
    for thing in _things(world, one.fault):
        others = broken[thing]
        others.remove(one.fault)
        if not others:
            _mend(world, *thing)
        elif thing[0] is not CardLost:
            _strike(world, others[-1])


def _note(world: World, one: Struck) -> None:
    """Note what a fault is about to cut."""
    fault = one.fault
    if isinstance(fault, (CardLost, PartitionLost)):
        cards = [card for card in _cards(world, fault) if card.alive]
        _note_turns(world, one, cards)
        one.moves = sum(world.transfer.under_way(card=card.id) for card in cards)
    elif isinstance(fault, LinkLost):
        one.moves = world.transfer.under_way(partition=fault.partition)
    elif isinstance(fault, GatewayRestarted):
        one.turns.update(world.clients.calls)
        one.moves = world.transfer.under_way()


def _note_turns(world: World, one: Struck, cards: Iterable[VirtualCard]) -> None:
    """Note the turns on cards that a fault takes away."""
    lost = {card.id for card in cards}
    for turn in world.base.state.turns.values():
        if turn.state != RUNNING or turn.card not in lost or turn.id in one.turns:
            continue
        call = world.clients.calls.get(turn.id)
        if call is not None:
            one.turns.add(turn.id)
            if call.first_ns >= 0:
                call.repeated_tokens = call.prompt_tokens


def _strike(world: World, fault: Fault) -> None:
    """Let something be as the fault has it, whatever it was before."""
    if isinstance(fault, CardSlow):
        world.cards[CardId(fault.card)].slow_down(fault.factor)
    elif isinstance(fault, LinkLost):
        world.transfer.link(fault.partition).lost = True
        world.transfer.fail(fault.partition)
    elif isinstance(fault, LinkSlow):
        world.transfer.link(fault.partition).tail = fault.tail
        world.transfer.set_factor(fault.partition, fault.factor)
    elif isinstance(fault, ToolSlow):
        world.clients.set_tool_pace(fault.tool, fault.factor)
    elif not world.away:
        world.vanish()


def _mend(world: World, kind: type[Fault], name: str) -> None:
    """Let something be well again."""
    if kind is CardLost:
        card = world.cards[CardId(name)]
        if not card.alive:
            card.start(heard=not world.away)
    elif kind is CardSlow:
        world.cards[CardId(name)].slow_down(1.0)
    elif kind is LinkLost:
        world.transfer.link(name).lost = False
    elif kind is LinkSlow:
        world.transfer.link(name).tail = None
        world.transfer.set_factor(name, 1.0)
    elif kind is ToolSlow:
        world.clients.set_tool_pace(name, 1.0)
    else:
        world.recover()


def _lose(world: World, one: Struck, losses: _Losses) -> None:
    """Stop the cards; the core hears of it after `silent_ns`, if it is there to hear."""
    fault = one.fault
    assert isinstance(fault, (CardLost, PartitionLost))
    cards = _cards(world, fault)
    for card in cards:
        if card.alive:
            world.transfer.abandon(card.id)
            card.freeze()
            losses[card.id] = losses.get(card.id, 0) + 1
    silent_ns = fault.silent_ns if isinstance(fault, CardLost) else 0
    if silent_ns:
        at_ns = world.heap.now_ns + silent_ns
        heard_of = {card.id: losses[card.id] for card in cards}
        world.heap.at(at_ns, FAULT, _call, partial(_notice, world, one, losses, heard_of))
    else:
        _bury(world, cards)


def _notice(world: World, one: Struck, losses: _Losses, heard_of: _Losses) -> None:
    """Bury those that were not lost again since."""
    cards = [world.cards[card] for card in heard_of if losses[card] == heard_of[card]]
    if any(not card.alive for card in cards):
        _note_turns(world, one, cards)
    _bury(world, cards)


def _bury(world: World, cards: list[VirtualCard]) -> None:
    for card in cards:
        if not card.alive and not world.away:
            card.bury("lost")
