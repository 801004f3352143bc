"""Every error that safewrite raises.

    SafeWriteError
    ├── you misused it; nothing was sent
    │   ├── NoRunContext        (RuntimeError)  no run or turn is open
    │   ├── MissingTarget       (ValueError)    the call does not say what the write is about
    │   ├── IntentMismatch      (ValueError)    the same intent again, with other values; carries their names
    │   ├── DuplicateTool       (ValueError)    two functions under one tool name
    │   ├── ConfigurationError  (ValueError)    a declaration, an argument or a setting that cannot be used
    │   └── SchemaOutdated      (RuntimeError)  the ledger's tables are not those of this version
    ├── WriteNotSent            refused: nothing was sent, and nothing is open
    │   ├── BudgetExhausted     too little time is left to send
    │   ├── BreakerOpen         the dependency is being spared
    │   └── LedgerUnavailable   the attempt could not be recorded first
    ├── WriteRejected           the dependency said no; its own error is the cause
    ├── OutcomeUnknown          something may have been sent, and nobody knows what became of it
    │   └── IntentInFlight      another call is carrying out the same write just now
    ├── ValueNotKept            applied, but the value cannot be replayed
    └── ReadFailed              a read brought nothing; its own error, if there is one, is the cause

Each carries `key` (of the intent, or `None` where there is none), `attempts` (how many were made), `trace`,
`tool`, and `for_model()`: the text for a language model.  All arguments but the message are keyword-only, and all
are optional: without a message, one is composed from the rest.  Errors can be pickled and copied.

Two more are for the author of a tool to raise on purpose: `NotSent` and `Rejected`.  They are plain exceptions,
no `SafeWriteError`: they tell safewrite something, and never reach a caller as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self, TypedDict, TypeVar, Unpack

from safewrite import words
from safewrite.core.events import OutcomeState

if TYPE_CHECKING:
    from safewrite.outcome import Outcome
    from safewrite.verdicts import NotFetched

__all__ = [
    "BreakerOpen",
    "BudgetExhausted",
    "ConfigurationError",
    "DuplicateTool",
    "IntentInFlight",
    "IntentMismatch",
    "LedgerUnavailable",
    "MissingTarget",
    "NoRunContext",
    "NotSent",
    "OutcomeUnknown",
    "ReadFailed",
    "Rejected",
    "SafeWriteError",
    "SchemaOutdated",
    "ValueNotKept",
    "WriteNotSent",
    "WriteRejected",
]


_E = TypeVar("_E", bound="SafeWriteError")


class Carried(TypedDict, total=False):
    """What every `SafeWriteError` takes: the intent's key, its number of attempts, the trace, the tool's name."""

    key: str | None
    attempts: int
    trace: str | None
    tool: str | None


class SafeWriteError(Exception):
    """Base of every error that safewrite raises."""

    _safewrite_error: ClassVar[bool] = True
    """Known without an import: raised out of a nested write, it is an unknown for the outer one."""

    key: str | None
    attempts: int
    trace: str | None
    tool: str | None

    def __init__(self, message: str = "", **carried: Unpack[Carried]) -> None:
        self.key = carried.get("key")
        self.attempts = carried.get("attempts", 0)
        self.trace = carried.get("trace")
        self.tool = carried.get("tool")
        super().__init__(message or self._message())

    def __reduce__(self) -> tuple[Any, ...]:
        # The default would call the constructor without its keywords.  What is carried goes as the state, not as
        # arguments, since the outcome that is among it may refer back to this error.
        return _blank, (type(self), self.args), self.__dict__

    def __copy__(self) -> Self:
        """Return a copy that keeps its cause, so that one recorded error can be raised to several waiters."""
        copy = _blank(type(self), self.args)
        copy.__dict__.update(self.__dict__)
        copy.__cause__, copy.__suppress_context__ = self.__cause__, self.__suppress_context__
        return copy

    def for_model(self) -> str:
        """Return what to tell a language model: what is known, what may still be running, and what to do."""
        return words.set_up(self.tool, "safewrite met an error")

    def _message(self) -> str:
        return f"{self._tool} could not be carried out."

    @property
    def _tool(self) -> str:
        return words.named(self.tool, start=True)


def _blank(kind: type[_E], args: tuple[Any, ...]) -> _E:
    return kind.__new__(kind, *args)


# You misused it: nothing was sent ----------------------------------------------------------------------------


class NoRunContext(SafeWriteError, RuntimeError):
    """A tool was called while no run, or no turn of it, was open.  Nothing was sent."""

    def for_model(self) -> str:
        return words.set_up(self.tool, "no run and turn are open around it")

    def _message(self) -> str:
        return (
            f"{self._tool} was called outside a run and turn, so nothing was sent. Open them with "
            '`with safewrite.run("run-id"), safewrite.turn(1):`, or give `run=` and `turn=` to `.options(...)`.'
        )


class _NamesParameters(SafeWriteError, ValueError):
    """Carries `parameters`: the names that are meant, never their values."""

    parameters: tuple[str, ...]

    def __init__(
        self, message: str = "", *, parameters: tuple[str, ...] = (), **carried: Unpack[Carried]
    ) -> None:
        self.parameters = tuple(parameters)
        super().__init__(message, **carried)


class MissingTarget(_NamesParameters):
    """The target was empty, or nothing in it was given.  Nothing was sent."""

    def for_model(self) -> str:
        return words.missing_target(self.tool, self.parameters)

    def _message(self) -> str:
        what = f": {words.listed(self.parameters)} is empty or `None`" if self.parameters else ""
        return (
            f"{self._tool} was called without a target{what}. Nothing was sent. "
            "Pass the identifier that says what the write is about."
        )


class IntentMismatch(_NamesParameters):
    """The same intent came again with other values.  Nothing was sent by this call; the first call stands."""

    def for_model(self) -> str:
        return words.mismatch(self.key, self.tool, self.parameters)

    def _message(self) -> str:
        names = f" of {words.listed(self.parameters)}" if self.parameters else ""
        return (
            f"{self._tool} was already called in this turn for the same target, with other values{names}. "
            "Nothing was sent by this call. For a second write give `.options(occurrence=...)`; for a new wish "
            "open a new turn; name a parameter in `free_text=` if rewording it changes nothing."
        )


class DuplicateTool(SafeWriteError, ValueError):
    """Another function is registered under the same tool name."""

    def for_model(self) -> str:
        return words.set_up(self.tool, "two tools have the same name")

    def _message(self) -> str:
        return (
            f"Another function is already registered as {words.named(self.tool)}. "
            "Give one of them another name: `@sw.write(..., name=...)`."
        )


class ConfigurationError(SafeWriteError, ValueError):
    """A declaration, an argument or a setting cannot be used.  Nothing was sent."""

    def for_model(self) -> str:
        return words.set_up(self.tool, "it is not configured correctly")

    def _message(self) -> str:
        return f"The configuration of {words.named(self.tool)} cannot be used."


class SchemaOutdated(SafeWriteError, RuntimeError):
    """The ledger's tables are not those that this version needs.  Nothing was sent."""

    def for_model(self) -> str:
        return words.set_up(self.tool, "the tables of the ledger are not those of this version of safewrite")

    def _message(self) -> str:
        return (
            "The ledger's tables are not those that this version of safewrite needs, so nothing was sent. "
            "Run `safewrite db upgrade`; `safewrite db check` shows what is there."
        )


# What became of the write --------------------------------------------------------------------------------------


class Fated(Carried, total=False):
    """What the errors about the fate of a write take as well."""

    reason: str
    outcome: Outcome[Any] | None
    blocked_by_key: str | None
    ledger: str


class _Fate(SafeWriteError):
    """Carries `reason` (a stable code), `outcome`, and `blocked_by_key`: the key of another, equal wish.

    `ledger`: where the ledger failed, which one, without a password, and what it said, in one line; else empty.
    """

    reason: str
    outcome: Outcome[Any] | None
    blocked_by_key: str | None
    ledger: str

    def __init__(self, message: str = "", **fate: Unpack[Fated]) -> None:
        self.reason = fate.get("reason", "")
        self.outcome = fate.get("outcome")
        self.blocked_by_key = fate.get("blocked_by_key")
        self.ledger = fate.get("ledger", "")
        super().__init__(
            message,
            key=fate.get("key"),
            attempts=fate.get("attempts", 0),
            trace=fate.get("trace"),
            tool=fate.get("tool"),
        )

    @property
    def _why(self) -> str:
        return f" (`{self.reason}`)" if self.reason else ""

    @property
    def _ledger(self) -> str:
        return f" ({self.ledger})" if self.ledger else ""

    @property
    def _look(self) -> str:
        key = self.blocked_by_key or self.key
        return f"`safewrite show {key}`" if key else "`safewrite unknown`"


class WriteNotSent(_Fate):
    """The call was refused: nothing was sent, and no attempt of the intent is open."""

    def for_model(self) -> str:
        if self.blocked_by_key is not None:
            return words.beside_applied(self.tool, self.blocked_by_key)
        again = self.reason not in words.SETTLED
        evidence = "person" if self.reason == "person" else ""
        return words.for_model(
            OutcomeState.NOT_APPLIED,
            self.reason,
            False,
            False,
            self.key,
            self.tool,
            again=again,
            evidence=evidence,
        )

    def _message(self) -> str:
        if self.reason in words.SETTLED:
            return (
                f"{self._tool} was not applied{self._why}, and is not sent again: the same call in the same turn "
                f"answers the same; see {self._look}."
            )
        if self.blocked_by_key is not None:
            return (
                f"{self._tool} was not sent: an earlier call in this run, with the same target and other values, "
                f"was applied; see {self._look}. For a second write give `.options(beside_unknown=True)`."
            )
        if self.attempts > 0:  # some were sent, and none of them took effect: not the same as never sent
            return (
                f"{self._tool} was not applied{self._why}: none of its attempts ({self.attempts}) took effect, and "
                "none can any more. It is safe to call it again."
            )
        return f"{self._tool} was not sent{self._why}. Nothing is open; it is safe to call it again."


class BudgetExhausted(WriteNotSent):
    """Too little of the deadline or budget was left to send.  Nothing was sent."""

    def _message(self) -> str:
        return (
            f"{self._tool} was not sent{self._why}: too little time was left. "
            "Nothing is open; call it again under a longer deadline."
        )


class BreakerOpen(WriteNotSent):
    """The breaker of the dependency is open.  Nothing was sent."""

    def _message(self) -> str:
        return (
            f"{self._tool} was not sent{self._why}: its dependency fails so often that it is being spared. "
            "Nothing is open; call it again later."
        )


class LedgerUnavailable(WriteNotSent):
    """The ledger could not be written, so nothing was sent."""

    def _message(self) -> str:
        return (
            f"{self._tool} was not sent{self._why}: the ledger could not record it first{self._ledger}. "
            "Nothing is open. Check the database with `safewrite db check`, then call it again."
        )


class WriteRejected(_Fate):
    """The dependency said no.  Its own error is the `__cause__`; nothing was changed."""

    def for_model(self) -> str:
        return words.for_model(
            OutcomeState.NOT_APPLIED, self.reason, False, False, self.key, self.tool, again=False
        )

    def _message(self) -> str:
        return (
            f"{self._tool} was rejected by its dependency{self._why}; nothing was changed. "
            f"The same call in the same turn answers the same; see {self._look}."
        )


class OutcomeUnknown(_Fate):
    """Something may have been sent, and nobody knows what became of it.  Do not send it again.

    `may_still_land` tells the two kinds apart: True, an attempt can still take effect; False, it is settled, and
    only not yet seen.  With `blocked_by_key` this call sent nothing: the intent of that key is the open one.
    """

    may_still_land: bool

    def __init__(self, message: str = "", *, may_still_land: bool = True, **fate: Unpack[Fated]) -> None:
        self.may_still_land = may_still_land
        super().__init__(message, **fate)

    def for_model(self) -> str:
        return words.for_model(
            OutcomeState.UNKNOWN,
            self.reason,
            self.may_still_land,
            False,
            self.key,
            self.tool,
            self.blocked_by_key,
        )

    def _message(self) -> str:
        still = "it may still land" if self.may_still_land else "it is settled, but not yet seen"
        key = self.blocked_by_key or self.key or "KEY"
        ways = f"look with {self._look}, or settle it with `safewrite resolve {key} applied|not-applied`"
        if self.blocked_by_key is not None:
            return (
                f"{self._tool} was not sent: an earlier call in this run with the same target is unknown{self._why}; "
                f"{still}. Do not send it under another key. A reconcile function of the tool ends this by itself, "
                f"and so does `sw.deliver(...)`; {ways}, or pass it with `.options(beside_unknown=True)`."
            )
        if self.reason == "ledger_unavailable" and not self.attempts:
            return (
                f"Whether {words.named(self.tool)} was applied is unknown{self._why}: the ledger cannot be read"
                f"{self._ledger}. This call sent nothing, but an earlier one may have. Look at the database, and call "
                "again in the same run and turn when it answers: what was sent is then found."
            )
        made = f"{self.attempts} attempt{'' if self.attempts == 1 else 's'}"
        return (
            f"Whether {words.named(self.tool)} was applied is unknown{self._why} after {made}; {still}. "
            f"Do not send it again: {ways}."
        )


class IntentInFlight(OutcomeUnknown):
    """Another call is carrying out the same intent just now.  This call sent nothing."""

    def for_model(self) -> str:
        return words.in_flight(self.key, self.tool)

    def _message(self) -> str:
        return (
            f"{self._tool} is being carried out by another call just now; this one sent nothing. "
            f"Do not send it again: wait for that call, or look with {self._look}."
        )


class ValueNotKept(_Fate):
    """The write was applied, but its value was not kept and cannot be replayed."""

    def for_model(self) -> str:
        return words.value_not_kept(self.key, self.tool)

    def _message(self) -> str:
        return (
            f"{self._tool} was applied, but its value was not kept and cannot be replayed{self._why}. "
            f"Do not send it again; see {self._look}."
        )


# What became of a read -----------------------------------------------------------------------------------------


class ReadFailed(SafeWriteError):
    """A read was refused, or brought nothing.  `about` says what was not fetched: tool, target, reason, how far.

    The error of its body, if there is one, is the `__cause__`.  Nothing was changed.
    """

    about: NotFetched | None

    def __init__(
        self, message: str = "", *, about: NotFetched | None = None, **carried: Unpack[Carried]
    ) -> None:
        self.about = about
        super().__init__(message, **carried)

    @property
    def reason(self) -> str:
        """Why, as a stable code."""
        return self.about.reason if self.about is not None else ""

    def for_model(self) -> str:
        return self.about.for_model() if self.about is not None else super().for_model()

    def _message(self) -> str:
        if self.about is None:
            return f"{self._tool} brought nothing."
        sent = "brought nothing" if self.about.sent else "was not sent"
        reached = f"; it had reached {self.about.reached}" if self.about.reached else ""
        return f"{self._tool} for {self.about.target} {sent} (`{self.reason}`){reached}. Nothing was changed."


# For the author of a tool to raise on purpose --------------------------------------------------------------------


class NotSent(Exception):
    """Raise it in a tool's body to say: nothing was sent, so nothing was changed.

    `again` says whether a further attempt makes sense within the same call (default: it does).
    """

    _safewrite_finding: ClassVar[str] = "not_sent"

    def __init__(self, message: str = "", *, again: bool = True) -> None:
        super().__init__(message)
        self.again = again


class Rejected(Exception):
    """Raise it in a tool's body to say: the dependency said no, and has changed nothing."""

    _safewrite_finding: ClassVar[str] = "rejected"

    def __init__(self, message: str = "") -> None:
        super().__init__(message)
