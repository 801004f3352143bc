"""`SafeWrite` and `@sw.write`: from a call of a decorated tool to its outcome."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import logging
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeVar

from safewrite.calls import CallOptions, Guard
from safewrite.core.events import Delivered
from safewrite.core.state import Alarm
from safewrite.declaring import declare
from safewrite.dependency import Dependency
from safewrite.durations import Duration, seconds
from safewrite.errors import ConfigurationError, DuplicateTool
from safewrite.fetch import Read, Reader, reader
from safewrite.ledger.anchor import anchored
from safewrite.ledger.forks import generation
from safewrite.outcome import Outcome
from safewrite.settings import Settings, resolve_settings
from safewrite.shell import aio
from safewrite.shell.debts import Debts
from safewrite.shell.job import Job
from safewrite.shell.reply import object_text
from safewrite.shell.steps import carry
from safewrite.shell.threads import Pool
from safewrite.told import outcome_of
from safewrite.tool import ALL_ARGUMENTS, Options, Target, Tool, Wait
from safewrite.wrap import Write, wrapper

if TYPE_CHECKING:
    from safewrite.audit.queries import Audit
    from safewrite.audit.records import IntentRecord
    from safewrite.ledger.model import Intent
    from safewrite.ledger.sql import Ledger
    from safewrite.recovery import Found, Recovered, Stop

P = ParamSpec("P")
R = TypeVar("R")
_log = logging.getLogger("safewrite")


class SafeWrite:
    """Guards the mutating tools of one application, over one ledger.

    - `url`: `sqlite:///agent.db` or `postgresql+psycopg://…`; default `SAFEWRITE_DATABASE_URL`, else
      `./safewrite.db`.
    - `namespace`: part of every key; one for each tenant or principal.  Default: the setting, "default".
    - `worker`: how the audit calls this process.  Default: host and process id.
    - `lease_margin`: seconds added to a claim's lease beyond its call.  Default: the setting, 5.0.
    - `max_stall`: the longest a body can go on after its lease; `None`: not declared.
    - `schema`: the schema of the tables, on a server database.
    - `settings`: other settings by name, as an argument's origin.

    Opening does no I/O.  Raises `ConfigurationError`.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        namespace: str | None = None,
        worker: str | None = None,
        lease_margin: Duration | None = None,
        max_stall: Duration | None = None,
        schema: str | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        given: dict[str, object] = dict(settings or {})
        if lease_margin is not None:
            given["lease_margin"] = seconds(lease_margin, name="lease_margin", allow_zero=True)
        if url is not None:
            given["database_url"] = url
        if namespace is not None:
            if not isinstance(namespace, str) or not namespace.strip():  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigurationError(f"`namespace` is {namespace!r}. Write a name, such as a tenant's.")
            given["namespace"] = namespace
        self.settings: Settings = resolve_settings(given).checked()
        self.namespace = self.settings.namespace
        self._worker, self._host = worker, os.uname().nodename if hasattr(os, "uname") else "host"
        self.max_stall = seconds(max_stall, name="max_stall", allow_none=True, allow_zero=True)
        self.schema = schema
        self.tools: dict[str, Tool] = {}
        self.reading_tools: dict[str, Tool] = {}
        self.prepared = False
        self._url = anchored(str(self.settings.database_url))
        self._ledger: Ledger | None = None
        self._opening: dict[int, threading.Lock] = {}
        self._alarms: list[Callable[[Any], None]] = []
        self.pool = Pool(int(self.settings.threads))
        self.debts = Debts()
        self._threads: ThreadPoolExecutor | None = None
        self._threads_pid = 0

    # Declaring tools -------------------------------------------------------------------------------------

    def write(
        self,
        *,
        target: Target,
        name: str | None = None,
        dependency: Dependency | None = None,
        timeout: Duration | None = None,
        max_attempts: int = 3,
        wait: Wait | None = None,
        free_text: tuple[str, ...] = (),
        redact: tuple[str, ...] = (),
        precondition: str | None = None,
        not_applied_on: tuple[type[BaseException], ...] = (),
        applied_when: Callable[[Any], bool | None] | None = None,
        single_request: bool = True,
        on_conflict: Literal["wait", "refuse"] = "wait",
        in_thread: bool | None = None,
        idle: Duration | None = None,
    ) -> Callable[[Callable[P, R]], Write[P, R]]:
        """Guard a mutating tool: a plain function, a coroutine function, or a method.

        - `target`: what the write is about: a parameter name, a tuple of names, a function of the arguments, or
          `safewrite.ALL_ARGUMENTS`.  No default: it is the heart of the key.
        - `name`: the tool's name in keys and audit; default: the function's qualified name.
        - `dependency`: what the other side promises; default: nothing.
        - `timeout`: seconds for one attempt, and for one reconciling read; default: what the call leaves.
        - `max_attempts`: how many attempts one call may make.  Default: 3.
        - `wait`: a tenacity wait strategy between attempts and reads; default: random exponential, 0.1 to 5 s.
        - `free_text`: parameters that may be reworded without being another wish: recorded, not compared.
        - `redact`: parameters whose values never reach the ledger.
        - `precondition`: the parameter that holds the version which every attempt carries.
        - `not_applied_on`: exception types that mean "nothing happened".
        - `applied_when`: a function of the value: True applied, False rejected, `None` unknown.
        - `single_request`: the last request of the body is its only write.  Default: True.
        - `on_conflict`: when the same write is in flight elsewhere, "wait" for its record or "refuse".
        - `in_thread`: run a plain function in a thread; default: if there is a limit to keep.
        - `idle`: seconds without `attempt.progress()` after which an attempt is given up, as at its timeout; default:
          it may be silent.

        Raises `ConfigurationError` and `DuplicateTool` when the tool is declared, not when it is called.
        """
        options = Options(
            target, name, dependency, timeout, max_attempts, wait, tuple(free_text) if not isinstance(free_text, str)
            else free_text, tuple(redact) if not isinstance(redact, str) else redact, precondition,
            tuple(not_applied_on) if isinstance(not_applied_on, list) else not_applied_on, applied_when,
            single_request, on_conflict, in_thread, idle,
        )  # fmt: skip

        def decorate(fn: Callable[P, R]) -> Write[P, R]:
            tool = declare(fn, options, _caller())
            self._register(tool)
            return wrapper(Guard(self, tool), CallOptions())

        return decorate

    def read(
        self,
        *,
        target: Target = ALL_ARGUMENTS,
        name: str | None = None,
        dependency: Dependency | None = None,
        timeout: Duration | None = None,
        max_attempts: int = 3,
        wait: Wait | None = None,
        redact: tuple[str, ...] = (),
        idempotent: bool = False,
        in_thread: bool | None = None,
    ) -> Callable[[Callable[P, R]], Read[P, R]]:
        """Guard a tool that only reads: a plain function, a coroutine function, or a method.

        - `target`: what a read is about, where it is said that it was not fetched.  Default: all arguments but those
          that are secret.
        - `timeout`: seconds for one try; `max_attempts`: tries of one call.  Default: what the call leaves, and 3.
        - `wait`: a tenacity wait strategy between tries; default: random exponential, 0.1 to 5 s.
        - `idempotent`: it may be sent twice at once: a slow one is, after the 95th percentile of those before.
          Default: False.
        - `name`, `dependency`, `redact`, `in_thread`: as of `@sw.write`.

        A call returns what the body does, or raises `ReadFailed`.  Raises `ConfigurationError` and `DuplicateTool`
        when the tool is declared.
        """
        options = Options(
            target, name, dependency, timeout, max_attempts, wait, redact=redact, in_thread=in_thread,
            idempotent=idempotent, kind="read",
        )  # fmt: skip

        def decorate(fn: Callable[P, R]) -> Read[P, R]:
            tool = declare(fn, options, _caller())
            self._register(tool)
            return reader(Reader(self, tool))

        return decorate

    def _register(self, tool: Tool) -> None:
        known = self.tools.get(tool.name) or self.reading_tools.get(tool.name)
        if known is not None and _place(known) != _place(tool):
            raise DuplicateTool(
                f"`{tool.name}` is the name of `{_place(known)}` already; `{_place(tool)}` needs another: "
                f"`@sw.{tool.options.kind}(name=...)`.",
                tool=tool.name,
            )
        (self.tools if tool.options.kind == "write" else self.reading_tools)[tool.name] = tool

    # The ledger and its threads --------------------------------------------------------------------------

    @property
    def worker(self) -> str:
        """How the audit calls this process: a forked child is another one."""
        return self._worker or f"{self._host}:{os.getpid()}"

    @property
    def _lock(self) -> threading.Lock:
        """Held while the ledger is opened or let go; a child, whose parent's thread may hold it, has its own."""
        return self._opening.setdefault(generation(), threading.Lock())

    @property
    def ledger(self) -> Ledger:
        """The ledger, opened (and, on SQLite, migrated) at first use."""
        if self._ledger is None:
            with self._lock:
                if self._ledger is None:
                    self._ledger = self._open()
        return self._ledger

    def _open(self) -> Ledger:
        from safewrite.ledger.sql import Ledger

        s = self.settings
        ledger = Ledger(
            self._url,
            busy_timeout=s.busy_timeout,
            connect_timeout=s.connect_timeout,
            statement_timeout=s.statement_timeout,
            schema=self.schema,
        )
        ledger.on_alarm = self._alarm
        return ledger

    def prepare(self) -> bool:
        """Open the ledger and see to its tables, unless that is done; return whether there was something to do."""
        if self.prepared:
            return False
        self.ledger.find("")
        if self._url.startswith("sqlite"):  # the URL of a server may hold a password
            _log.info("the ledger is %s", self._url)
        self.prepared = True
        return True

    @property
    def threads(self) -> ThreadPoolExecutor:
        """The threads through which coroutines reach the ledger."""
        if self._threads is None or self._threads_pid != os.getpid():
            self._threads = ThreadPoolExecutor(4, thread_name_prefix="safewrite-ledger")
            self._threads_pid = os.getpid()
        return self._threads

    def _alarm(self, intent: Intent, alarm: Alarm) -> None:
        _log.error("safewrite alarm `%s` on %s: %s", alarm.kind, intent.identity.key, alarm.detail)
        for callback in list(self._alarms):
            try:
                callback(Alert(alarm.kind, alarm.detail, intent.identity.key, intent.identity.tool))
            except Exception:
                _log.exception("an alarm callback failed")

    def on_alarm(self, callback: Callable[[Alert], None]) -> Callable[[Alert], None]:
        """Call `callback(alert)` on every alarm; alarms are also logged at ERROR.  Usable as a decorator."""
        self._alarms.append(callback)
        return callback

    # Results by other roads, recovery, audit -------------------------------------------------------------

    def deliver(self, attempt_id: str, value: object, *, object_id: str | None = None) -> Outcome[Any]:
        """Record a result that came by another road, a webhook for instance, and return the folded outcome.

        Proof for whichever attempt `attempt_id` names; the first recorded value stays.  The value is converted by
        the tool's return hint, as a webhook's dict into its model.  Raises `ConfigurationError` for an attempt that is
        not in the ledger, and for a value that does not fit.
        """
        found = self.ledger.attempt(attempt_id)
        if found is None:
            raise ConfigurationError(
                f"no attempt `{attempt_id}` is in the ledger. Check the id and the database."
            )
        intent, number = found
        job = self.job_for(intent, quiet=True)
        encoded = job.tool.codec.encode(job.tool.as_value(value))
        contents = {} if encoded.text is None else {"value": encoded.text}
        job.intent = intent
        carry(job.record(Delivered(number, "value" in contents, object_text(object_id)), contents))
        assert job.intent is not None
        return outcome_of(job, job.look())

    async def adeliver(self, attempt_id: str, value: object, *, object_id: str | None = None) -> Outcome[Any]:
        """Do as `deliver`, from a coroutine."""
        return await aio.shielded(self.threads, lambda: self.deliver(attempt_id, value, object_id=object_id))

    def resolve(self, key: str, *, applied: bool, by: str, note: str) -> IntentRecord:
        """Record a person's word on an intent that is unknown, and return the intent after it.

        `by` says who looked, `note` what they saw.  Nothing is sent for the intent again; proof that comes later
        wins, with an alarm where it says otherwise.  Raises `ConfigurationError` for a key that is not on record,
        an empty `by` or `note`, and an intent that is not unknown.
        """
        from safewrite.audit.resolve import resolve

        return resolve(self.ledger, key, applied=applied, by=by, note=note)

    def recover(
        self,
        *,
        resend: bool = False,
        progress: Callable[[Found, int, int], None] | None = None,
        stop: Stop | None = None,
    ) -> Recovered:
        """Take up what crashes and timeouts left open: reconcile it, and send again only with `resend=True`.

        `progress(found, done, total)` is called after each intent; once `stop` is set no further one is begun.
        Safe in many places at once: no two look at one intent.
        """
        from safewrite import recovery

        return recovery.recover(self, resend=resend, progress=progress, stop=stop)

    async def arecover(
        self,
        *,
        resend: bool = False,
        progress: Callable[[Found, int, int], None] | None = None,
        stop: Stop | None = None,
    ) -> Recovered:
        """Do as `recover`, from a coroutine; tools that are coroutine functions run on this loop."""
        from safewrite import recovery

        return await recovery.arecover(self, resend=resend, progress=progress, stop=stop)

    @property
    def audit(self) -> Audit:
        """Questions about what was done."""
        from safewrite.audit.queries import Audit

        return Audit(self.ledger)

    def upgrade(self) -> None:
        """Bring the ledger's tables to this version."""
        self.ledger.upgrade()

    def close(self) -> None:
        """Let go of connections and idle threads; the next call opens them again."""
        with self._lock:
            ledger, self._ledger = self._ledger, None
            self.prepared = False
        if ledger is not None:
            ledger.close()
        threads, self._threads = self._threads, None
        if threads is not None and self._threads_pid == os.getpid():
            threads.shutdown(wait=False)
        self.pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.to_thread(self.close)

    # Jobs for intents on record --------------------------------------------------------------------------

    def job_for(
        self,
        intent: Intent,
        *,
        sends: int = 0,
        quiet: bool = True,
        within: float | None = None,
        trace: str = "",
        worker: str | None = None,
    ) -> Job:
        """Return a job that looks at an intent on record, for another call or for recovery.

        Raises `ConfigurationError` if its tool is not declared here.
        """
        from safewrite.ledger.codec import decode_arguments
        from safewrite.ledger.model import Meta

        tool = self.tools.get(intent.identity.tool)
        if tool is None:
            raise ConfigurationError(
                f"the tool `{intent.identity.tool}` is not declared in this process: import its module first.",
                tool=intent.identity.tool,
                key=intent.identity.key,
            )
        guard = Guard(self, tool)
        arguments, missing = decode_arguments(self.ledger.arguments(intent.id), tool.argument_codecs)
        left = within if within is not None else self.settings.operation_timeout
        meta = Meta(worker=worker or self.worker, trace=trace, dependency=tool.dependency.name)
        refusal = "redacted_argument" if sends and missing else ""
        return Job(
            self,
            tool,
            guard.ticket(intent.identity, arguments),
            arguments,
            guard.limits(left, floor=0.0, explicit=True),
            self.pool,
            meta,
            sends,
            quiet=quiet,
            max_stall=self.max_stall,
            refusal=refusal,
            missing=tuple(missing),
            open_other=self.other,
            intent=intent,
        )

    def other(self, job: Job, intent_id: str, *, quiet: bool = True) -> Job:
        """Return the job that looks at another intent with the same wish, within what `job` has left."""
        intent = self.ledger.load(intent_id)
        assert intent is not None
        return self.job_for(intent, quiet=quiet, within=job.left(), trace=job.meta.trace)


@dataclasses.dataclass(frozen=True, slots=True)
class Alert:
    """What `on_alarm` callbacks get: something that the declared promises do not allow."""

    kind: str
    detail: str
    key: str
    tool: str


def _caller() -> FrameType | None:
    """Return the frame in which a tool is declared: hints written as text may name what is local there."""
    frame = inspect.currentframe()
    declaring = frame.f_back if frame is not None else None
    return declaring.f_back if declaring is not None else None


def _place(tool: Tool) -> str:
    return f"{tool.fn.__module__}.{tool.fn.__qualname__}"
