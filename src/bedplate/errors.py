"""The error tree: every failure a user can meet, with its HTTP status and whether a retry can help.

Messages say what happened, to which id, and what to do next. They never hold prompt text or
secrets.
`InvariantViolation` is not part of the tree: it is a bug, and only the supervisor catches it.
"""

from __future__ import annotations


class BedplateError(Exception):
    """A failure with a stable code.

    Attributes:
        code: Stable machine-readable word, the `code` of an OpenAI error body.
        http_status: Status of the response that carries it.
        retryable: True when the same call may succeed later without a change by the caller.
        param: Name of the request field at fault, or None.
        retry_after_s: Seconds to wait before a retry, or None when waiting does not help.
    """

    code = "internal_error"
    http_status = 500
    retryable = False

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        if code is not None:
            self.code = code


class ConfigError(BedplateError):
    """The configuration cannot be used; the message names file, key and the nearest valid key."""

    code = "config_error"


class RequestError(BedplateError):
    """The request is at fault; sending it again unchanged fails again."""

    code = "invalid_request_error"
    http_status = 400


class InvalidRequest(RequestError):
    """A field is missing, malformed, out of range or not supported by the engine of this model."""


class ContextTooLong(RequestError):
    """Prompt plus at least one output token exceed what one card can hold for one session."""

    code = "context_length_exceeded"
    action = (
        "shorten it, or raise kv_tokens (context_tokens of an endpoint, session_tokens_max of a "
        "tenant)"
    )
    """What the message of one that Bedplate itself finds ends with."""


class NotAuthenticated(RequestError):
    """No key, an unknown key, a revoked or an expired one. The message is the same for all four."""

    code = "invalid_api_key"
    http_status = 401


class NotAllowed(RequestError):
    """The key is valid but may not do this (lane, model, scope)."""

    code = "permission_denied"
    http_status = 403


class UnknownModel(RequestError):
    """No engine serves the named model."""

    code = "model_not_found"
    http_status = 404


class UnknownSession(RequestError):
    """No such session for this tenant; another tenant's session answers the same."""

    code = "session_not_found"
    http_status = 404


class IdempotencyConflict(RequestError):
    """The idempotency key was used with another body."""

    code = "idempotency_key_conflict"
    http_status = 409


class BodyTooLarge(RequestError):
    """The body is larger than the configured bound."""

    code = "body_too_large"
    http_status = 413


class CapacityError(BedplateError):
    """The service is healthy but has no room for this call now."""

    code = "capacity"
    http_status = 429
    retryable = True


class QuotaExceeded(CapacityError):
    """A limit of the tenant is reached; `code` names which."""

    code = "quota_exceeded"


class BudgetExceeded(QuotaExceeded):
    """The call may cost more than is left of the tenant's money of the day or month.

    The error says when to come back, unless waiting cannot help.
    """

    code = "budget_exceeded"
    retryable = False


class SessionBudgetExceeded(BudgetExceeded):
    """The call may take more than is left of what its session may use, in money or in tokens."""

    code = "session_budget_exceeded"


class LaneFull(CapacityError):
    """The bounded queue of this tenant and lane is full, or the wait in it ran out."""

    code = "lane_full"


class Draining(CapacityError):
    """The service is shutting down and takes no new calls."""

    code = "draining"
    http_status = 503


class NoEngine(CapacityError):
    """No card that serves the model is up."""

    code = "no_engine"
    http_status = 503


class RetryBudgetSpent(CapacityError):
    """A card failed the turn, and no more prompts may be sent again for now."""

    code = "retry_budget_spent"
    http_status = 503


class DeadlineExceeded(BedplateError):
    """The time that the caller gave its call is over."""

    code = "deadline_exceeded"
    http_status = 504


class EngineError(BedplateError):
    """An engine failed while it served the call."""

    code = "engine_error"
    http_status = 502
    retryable = True


class EngineProtocolError(EngineError):
    """The engine answered something that its protocol does not allow."""

    code = "engine_protocol_error"


class EngineLost(EngineError):
    """The engine's process or connection ended before the call did."""

    code = "engine_lost"


class SchemaNotKept(EngineError):
    """The answer does not keep to the schema or the tool call that the request demands.

    The same request is likely to break again, and each try costs a whole answer: a retry is the
    caller's decision, best with a simpler schema.
    """

    code = "schema_not_kept"
    retryable = False


class EngineTimeout(EngineError):
    """The engine did not answer within the deadline of the call."""

    code = "engine_timeout"
    http_status = 504


class PoolError(BedplateError):
    """The KV pool could not store, find or verify an entry. The caller recomputes."""

    code = "pool_error"
    http_status = 503


class JournalError(BedplateError):
    """The journal cannot be written, read or verified."""

    code = "journal_error"
    http_status = 503


class JournalMissing(JournalError):
    """There is no journal in the folder that was named."""

    code = "journal_missing"


class JournalBusy(JournalError):
    """Another process writes the journal; one at a time may."""

    code = "journal_busy"


class ChainBroken(JournalError):
    """A record does not match the tree or a signed checkpoint."""

    code = "journal_chain_broken"


class Truncated(JournalError):
    """Records that a checkpoint covers are missing."""

    code = "journal_truncated"


class ReplayDivergence(JournalError):
    """Replay decided otherwise than the live run.

    The message names the first record that differs.
    """

    code = "replay_divergence"


class InvariantViolation(AssertionError):
    """A numbered invariant (docs/invariants.md) does not hold: a bug, never a user's error."""
