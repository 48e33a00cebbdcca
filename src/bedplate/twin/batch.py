"""The batch of one virtual card: which sequences step together, and for how many equal steps.

A sequence is first a prompt, computed in chunks, then it decodes one token a step; the step that
computes the last of its prompt gives its first token. `plan` looks at the batch and says how the
next run of equal steps goes; `advance` carries out as many of them as came to pass.

    prompts   [head | next | ...]      the head takes all room of a step; only where its rest is
                                       smaller do others share the step with it
    decoding  a heap by the step in which each sequence ends: `steps` counts the steps of all that
              decode, so that a run of steps changes one number and not every sequence

Conventions of cost: a decoding sequence attends to the tokens before and to itself, as a prompt
token does, so a prompt chunk of one token and a decoding step cost the same attention.
"""

from __future__ import annotations

import heapq
from bisect import insort
from operator import attrgetter

from bedplate.core.ids import SlotId
from bedplate.perf.profile import CardProfile
from bedplate.twin.steps import duration_ns

MEMO_MAX = 1 << 16
"""Step times that are remembered for one profile."""

# States of a sequence.
BEGINNING, PROMPT, DECODING, ENDING, GONE = range(5)


class Sequence:
    """One attempt of a turn on a card.

    `left` prompt tokens are still to be computed, behind `behind` that are there. `out_tokens` is
    what it will produce. It began to decode when its card had made `born` decoding steps.
    """

    __slots__ = ("behind", "born", "left", "number", "out_tokens", "prompt_tokens", "slot", "state")

    def __init__(self, number: int, slot: SlotId, prompt_tokens: int, cached_tokens: int) -> None:
        self.number = number
        self.slot = slot
        self.prompt_tokens = prompt_tokens
        self.left = prompt_tokens - cached_tokens
        self.behind = cached_tokens
        self.out_tokens = 1
        self.born = 0
        self.state = BEGINNING


_by_slot = attrgetter("slot")


class Batch:
    """The sequences of a card and its current run of steps (`run_steps` = 0: none).

    The first step of the run lasts `first_ns`, each later one `growth_ns` more. `idle_tokens` are
    held in slots whose turns are not in the batch.
    """

    __slots__ = (
        "_budget",
        "_cell_ns",
        "_context_ns",
        "_context_tokens",
        "_decoding_heap",
        "_fixed_ns",
        "_memo",
        "_mixed",
        "_order_by_slot",
        "_pair_ns",
        "_prompts_max",
        "_run_chunk",
        "_run_decoding",
        "_run_head",
        "_run_shares",
        "decoding",
        "first_ns",
        "growth_ns",
        "idle_tokens",
        "prompt_tokens",
        "prompts",
        "run_steps",
        "slowness",
        "steps",
    )

    def __init__(self, profile: CardProfile, memo: dict[int, float]) -> None:
        """`memo` keeps step times of this profile; cards that are alike share it."""
        batching, cost = profile.batching, profile.step
        self._budget = batching.token_budget
        self._mixed = batching.mixed
        self._prompts_max = batching.prompts_max or profile.slots
        self._order_by_slot = batching.order == "slot"
        self._fixed_ns = cost.fixed_ns
        self._pair_ns = cost.pair_ns
        self._context_ns = cost.context_ns
        self._cell_ns = profile.cell_ns
        self._memo = memo
        self.slowness = 1.0
        self.idle_tokens = 0
        self.prompt_tokens = 0
        self.clear()

    def clear(self) -> None:
        """Forget all sequences; what was computed stays counted."""
        self.prompts: list[Sequence] = []
        self.decoding = 0
        self.steps = 0
        self._decoding_heap: list[tuple[int, int, Sequence]] = []
        self._context_tokens = 0
        self._run_chunk = 0
        self._run_decoding = 0
        self._run_head: Sequence | None = None
        self._run_shares: list[tuple[Sequence, int]] = []
        self.run_steps = 0
        self.first_ns = 0.0
        self.growth_ns = 0.0

    def join(self, sequence: Sequence) -> bool:
        """Add a prompt; tell whether it may change the run of steps that is under way."""
        sequence.state = PROMPT
        prompts = self.prompts
        if self._order_by_slot:
            insort(prompts, sequence, key=_by_slot)
            if prompts[0] is sequence:
                return True
        else:
            prompts.append(sequence)
        return self._cell_ns > 0 or not (self._run_chunk and self.run_steps)

    def leave(self, sequence: Sequence) -> None:
        """Take out a sequence that did not end; only between two runs of steps."""
        if sequence.state == PROMPT:
            self.prompts.remove(sequence)
        else:
            assert sequence.state == DECODING
            self.decoding -= 1
            self._context_tokens -= sequence.behind + 1 + self.steps - sequence.born
        sequence.state = GONE

    def produced(self, sequence: Sequence, steps: int) -> int:
        """Return the output tokens of a sequence after `steps` steps of the run under way."""
        if sequence.state == PROMPT:
            return 0
        if sequence.state != DECODING:
            return sequence.out_tokens
        more = steps if self._run_decoding else 0
        return 1 + self.steps + more - sequence.born

    def plan(self) -> int:
        """Begin the next run of equal steps; return how many, 0 if there is nothing to do.

        Cost: O(log sequences), and the prompts that share a step.
        """
        prompts = self.prompts
        decoding = self.decoding
        self._run_shares = []
        self._run_chunk = 0
        room = 0
        if prompts:
            room = self._budget - decoding if self._mixed else self._budget
        if room > 0:
            if not self._mixed:
                decoding = 0
            steps, tokens, pairs = self._plan_prompts(room)
        elif decoding:
            steps, tokens, pairs = 0, 0, 0
        else:
            self.run_steps = 0
            return 0
        key = tokens << 16 | decoding
        first_ns = self._memo.get(key)
        if first_ns is None:
            first_ns = self._look_up(key, tokens, decoding)
        chunk = self._run_chunk
        first_ns += self._pair_ns * pairs
        growth_ns = self._pair_ns * (chunk * chunk)
        if decoding:
            ends = self._first_end() - self.steps
            if steps == 0 or ends < steps:
                steps = ends
            first_ns += self._context_ns * self._context_tokens
            growth_ns += self._context_ns * decoding
        if self._cell_ns:
            computed = tokens + decoding
            first_ns += self._cell_ns * (computed * self._held_tokens())
            growth_ns += self._cell_ns * (computed * computed)
        self._run_decoding = decoding
        self.first_ns = first_ns * self.slowness
        self.growth_ns = growth_ns * self.slowness
        self.run_steps = steps
        return steps

    def _plan_prompts(self, room: int) -> tuple[int, int, int]:
        """Share the room of the next step; return (equal steps, prompt tokens, pairs) of a step."""
        head = self.prompts[0]
        if head.left >= room:
            self._run_head = head
            self._run_chunk = room
            return head.left // room, room, room * head.behind + room * (room + 1) // 2
        tokens = pairs = 0
        shares = self._run_shares
        for sequence in self.prompts[: self._prompts_max]:
            share = sequence.left
            if share > room - tokens:
                share = room - tokens
            shares.append((sequence, share))
            tokens += share
            pairs += share * sequence.behind + share * (share + 1) // 2
            if tokens == room:
                break
        return 1, tokens, pairs

    def _held_tokens(self) -> int:
        """Return the KV tokens on the card before the next step: idle, decoding, of prompts."""
        decoding_tokens = self._context_tokens - self.decoding
        return self.idle_tokens + decoding_tokens + sum(one.behind for one in self.prompts)

    def _look_up(self, key: int, tokens: int, decoding: int) -> float:
        if len(self._memo) >= MEMO_MAX:
            self._memo.clear()
        first_ns = self._memo[key] = self._fixed_ns(tokens, decoding)
        return first_ns

    def _first_end(self) -> int:
        ends = self._decoding_heap
        while ends[0][2].state == GONE:
            heapq.heappop(ends)
        return ends[0][0]

    @property
    def decodes(self) -> bool:
        """Tell whether sequences decode in the run under way."""
        return self._run_decoding > 0

    def cut(self, steps: int) -> None:
        """End the run under way earlier, after `steps` of its steps."""
        assert steps <= self.run_steps
        self.run_steps = steps

    def duration_ns(self) -> float:
        """Return how long the run of steps lasts, as it is planned or cut."""
        return duration_ns(self.run_steps, self.first_ns, self.growth_ns)

    def advance(self, started: list[Sequence], ended: list[Sequence]) -> None:
        """Carry out the run; add those whose prompt is done to `started`, who is done to `ended`.

        A sequence that needs no more than its first token is in both.
        """
        steps = self.run_steps
        self.run_steps = 0
        if steps == 0:
            return
        if self._run_decoding:
            self.steps += steps
            self._context_tokens += self.decoding * steps
            if self._decoding_heap[0][0] <= self.steps:
                self._collect(ended)
        if self._run_chunk:
            head = self._run_head
            assert head is not None
            self._compute(head, self._run_chunk * steps)
            if head.left == 0:
                self.prompts.remove(head)
                self._start(head, started, ended)
        elif self._run_shares:
            for sequence, share in self._run_shares:
                self._compute(sequence, share)
                if sequence.left == 0:
                    self._start(sequence, started, ended)
            self.prompts = [s for s in self.prompts if s.left]

    def _compute(self, sequence: Sequence, tokens: int) -> None:
        sequence.left -= tokens
        sequence.behind += tokens
        self.prompt_tokens += tokens
        assert sequence.left >= 0

    def _collect(self, ended: list[Sequence]) -> None:
        ends = self._decoding_heap
        while ends and ends[0][0] <= self.steps:
            sequence = heapq.heappop(ends)[2]
            if sequence.state != GONE:
                assert sequence.born + sequence.out_tokens - 1 == self.steps
                self.decoding -= 1
                self._context_tokens -= sequence.behind + sequence.out_tokens
                sequence.state = ENDING
                ended.append(sequence)

    def _start(self, sequence: Sequence, started: list[Sequence], ended: list[Sequence]) -> None:
        started.append(sequence)
        more = sequence.out_tokens - 1
        if more == 0:
            sequence.state = ENDING
            ended.append(sequence)
            return
        sequence.state = DECODING
        sequence.born = self.steps
        self.decoding += 1
        self._context_tokens += sequence.behind + 1
        heapq.heappush(self._decoding_heap, (self.steps + more, sequence.number, sequence))
