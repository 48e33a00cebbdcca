"""Identifiers. Strings arrive inside events; integers are given by core, in order, never reused."""

from __future__ import annotations

from typing import NewType

TenantId = NewType("TenantId", str)
SessionId = NewType("SessionId", str)
BranchId = NewType("BranchId", int)
"""Line of a session's tree: 0 is the head the session began with, forks count up."""
TurnId = NewType("TurnId", str)
CardId = NewType("CardId", str)
SlotId = NewType("SlotId", int)
ModelId = NewType("ModelId", str)
EntryId = NewType("EntryId", int)
"""One stored KV copy in the pool."""
