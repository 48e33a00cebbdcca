"""Lets faults happen to a world, and end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import assert_never

from bedplate.core.ids import CardId
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
from bedplate.twin.world import World


def schedule(world: World, faults: Iterable[Fault]) -> None:
    """Put the beginning and the end of each fault on the heap.

    Raises:
        ConfigError: a fault names a card or partition that is not there, or ends before it begins.
    """
    for fault in faults:
        _check(world, fault)
        end_ns = fault.until_ns if hasattr(fault, "until_ns") else fault.back_ns
        begins, ends = _effect(world, fault)
        began_ns = world.heap.now_ns
        world.heap.at(began_ns + fault.at_ns, FAULT, _call, begins)
        if end_ns != NEVER:
            world.heap.at(began_ns + end_ns, FAULT, _call, ends)


def _call(effect: Callable[[], None]) -> None:
    effect()


def _check(world: World, fault: Fault) -> None:
    end_ns = fault.until_ns if hasattr(fault, "until_ns") else fault.back_ns
    if fault.at_ns < 0 or (end_ns != NEVER and end_ns < fault.at_ns):
        raise ConfigError(f"fault {fault}: it ends before it begins")
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


def _effect(world: World, fault: Fault) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return what the fault does when it begins and when it ends."""
    if isinstance(fault, CardLost):
        cards = [world.cards[CardId(fault.card)]]
        lose = partial(_lose, world, cards, fault.silent_ns)
        return lose, partial(_bring_back, world, cards)
    if isinstance(fault, PartitionLost):
        cards = [card for card in world.cards.values() if card.partition == fault.partition]
        return partial(_lose, world, cards, 0), partial(_bring_back, world, cards)
    if isinstance(fault, CardSlow):
        slow = world.cards[CardId(fault.card)].slow_down
        return partial(slow, fault.factor), partial(slow, 1.0)
    if isinstance(fault, LinkLost):
        return partial(_cut, world, fault), partial(_mend, world, fault)
    if isinstance(fault, LinkSlow):
        return partial(_slow_link, world, fault), partial(_speed_up_link, world, fault)
    if isinstance(fault, ToolSlow):
        set_pace = world.clients.set_tool_pace
        return partial(set_pace, fault.tool, fault.factor), partial(set_pace, fault.tool, 1.0)
    if isinstance(fault, GatewayRestarted):
        return world.vanish, world.recover
    assert_never(fault)


def _lose(world: World, cards: list[VirtualCard], silent_ns: int) -> None:
    """Stop the cards; the core hears of it after `silent_ns`, if it is there to hear."""
    for card in cards:
        if card.alive:
            world.transfer.abandon(card.id)
            card.freeze()
    if silent_ns:
        at_ns = world.heap.now_ns + silent_ns
        world.heap.at(at_ns, FAULT, _call, partial(_bury, world, cards))
    else:
        _bury(world, cards)


def _bury(world: World, cards: list[VirtualCard]) -> None:
    for card in cards:
        if not card.alive and not world.away:
            card.bury("lost")


def _bring_back(world: World, cards: list[VirtualCard]) -> None:
    for card in cards:
        if not card.alive:
            card.start(heard=not world.away)


def _cut(world: World, fault: LinkLost) -> None:
    world.transfer.link(fault.partition).lost = True
    world.transfer.fail(fault.partition)


def _mend(world: World, fault: LinkLost) -> None:
    world.transfer.link(fault.partition).lost = False


def _slow_link(world: World, fault: LinkSlow) -> None:
    world.transfer.link(fault.partition).tail = fault.tail
    world.transfer.set_factor(fault.partition, fault.factor)


def _speed_up_link(world: World, fault: LinkSlow) -> None:
    world.transfer.link(fault.partition).tail = None
    world.transfer.set_factor(fault.partition, 1.0)
