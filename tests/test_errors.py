"""The tree of errors, and what a language model is told."""

from __future__ import annotations

import copy
import inspect
import itertools
import pickle
import re

import pytest

from safewrite import errors, words
from safewrite.core.events import OutcomeState
from safewrite.verdicts import NotFetched

CARRIED = {"key": "sw1_abc", "attempts": 2, "trace": "t-1", "tool": "cancel"}
FATE = {**CARRIED, "reason": "read_timeout", "blocked_by_key": None, "outcome": ("kept", "as", "it is")}
KEYWORDS = {
    errors.SafeWriteError: CARRIED,
    errors.NoRunContext: CARRIED,
    errors.MissingTarget: {**CARRIED, "parameters": ("sub_id",)},
    errors.IntentMismatch: {**CARRIED, "parameters": ("amount", "unit")},
    errors.DuplicateTool: CARRIED,
    errors.ConfigurationError: CARRIED,
    errors.SchemaOutdated: CARRIED,
    errors.WriteNotSent: FATE,
    errors.BudgetExhausted: FATE,
    errors.BreakerOpen: FATE,
    errors.LedgerUnavailable: FATE,
    errors.WriteRejected: FATE,
    errors.OutcomeUnknown: {**FATE, "may_still_land": False},
    errors.IntentInFlight: {**FATE, "may_still_land": True},
    errors.ValueNotKept: FATE,
    errors.ReadFailed: {
        **CARRIED,
        "about": NotFetched("get", '"cus_1"', "http_503", "page 2", sent=True),
    },
}
KINDS = pytest.mark.parametrize("kind", KEYWORDS, ids=lambda kind: kind.__name__)


def test_the_tree_is_as_drawn() -> None:
    """The drawing at the top of the module names every error, below its base."""
    assert errors.__doc__ is not None
    path: list[type[BaseException]] = [errors.SafeWriteError]
    drawn = {errors.SafeWriteError}
    for bars, name, also in re.findall(
        r"^    ([│ ]*[├└]──) (\w+)(?: +\((\w+)\))?", errors.__doc__, re.MULTILINE
    ):
        depth = (len(bars) + 1) // 4
        kind = getattr(errors, name, None)
        if kind is None:
            assert name == "you"  # the family of misuse has no class of its own
            path[depth:] = [errors.SafeWriteError]
            continue
        assert issubclass(kind, path[depth - 1])
        assert not also or issubclass(kind, {"ValueError": ValueError, "RuntimeError": RuntimeError}[also])
        path[depth:] = [kind]
        drawn.add(kind)
    assert set(KEYWORDS) == drawn


def test_every_error_is_public_and_listed() -> None:
    """`__all__` is sorted and names every class but the private ones."""
    there = {
        name
        for name, thing in vars(errors).items()
        if inspect.isclass(thing) and issubclass(thing, Exception) and not name.startswith("_")
    }
    assert sorted(there) == errors.__all__
    assert {kind.__name__ for kind in KEYWORDS} | {"NotSent", "Rejected"} == there


@KINDS
def test_an_error_carries_what_it_was_given(kind: type[errors.SafeWriteError]) -> None:
    """Every keyword is an attribute of the same value."""
    error = kind("a message", **KEYWORDS[kind])
    assert KEYWORDS[kind] == {name: getattr(error, name) for name in KEYWORDS[kind]}
    assert str(error) == "a message"
    assert error._safewrite_error is True


@KINDS
def test_all_arguments_are_optional(kind: type[errors.SafeWriteError]) -> None:
    """Without arguments there is no key and no attempt, but still a message and a text for the model."""
    error = kind()
    assert (error.key, error.attempts, error.trace, error.tool) == (None, 0, None, None)
    assert str(error)[0].isupper()
    assert str(error).endswith(".")
    assert "None" not in str(error).replace("`None`", "")
    assert error.for_model().endswith(".")
    assert "None" not in error.for_model()


@KINDS
def test_arguments_are_keyword_only(kind: type[errors.SafeWriteError]) -> None:
    """Nothing but the message is taken by position."""
    with pytest.raises(TypeError):
        kind("a message", "sw1_abc")  # type: ignore[arg-type, misc]


@KINDS
@pytest.mark.parametrize("remake", [copy.copy, copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))])
def test_errors_survive_pickle_and_copy(kind: type[errors.SafeWriteError], remake) -> None:
    """A copy has the same type, message, attributes and notes."""
    error = kind(**KEYWORDS[kind])
    error.add_note("seen by worker 2")
    again = remake(error)
    assert type(again) is kind
    assert again is not error
    assert (again.args, vars(again)) == (error.args, vars(error))
    assert again.for_model() == error.for_model()


def test_a_subclass_with_a_constructor_of_its_own_survives_as_well() -> None:
    """Remaking an error does not call its constructor."""
    again = pickle.loads(pickle.dumps(Demanding(needed=3)))
    assert (again.needed, str(again)) == (3, "needs 3")


@pytest.mark.parametrize("remake", [copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))])
def test_an_outcome_may_refer_back_to_its_error(remake) -> None:
    """A circle of outcome and error is remade as a circle."""
    error = errors.OutcomeUnknown(key="sw1_abc")
    error.outcome = {"error": error}  # type: ignore[assignment]
    again = remake(error)
    assert again.outcome["error"] is again


class Demanding(errors.SafeWriteError):
    def __init__(self, *, needed: int) -> None:
        self.needed = needed
        super().__init__(f"needs {needed}")


def test_a_raised_error_keeps_its_cause_when_copied() -> None:
    """`raise ... from` is kept by `copy.copy`, and does not hinder pickling."""
    cause = TimeoutError("read")
    with pytest.raises(errors.OutcomeUnknown) as caught:
        raise errors.OutcomeUnknown(key="sw1_abc") from cause
    again = copy.copy(caught.value)
    assert again.__cause__ is cause
    assert again.__suppress_context__
    assert pickle.loads(pickle.dumps(caught.value)).key == "sw1_abc"


def test_the_message_of_an_unknown_says_state_and_way_out() -> None:
    """What happened, in which state, and the commands that look and settle."""
    assert str(errors.OutcomeUnknown(**CARRIED, reason="read_timeout")) == (
        "Whether `cancel` was applied is unknown (`read_timeout`) after 2 attempts; it may still land. Do not send it "
        "again: look with `safewrite show sw1_abc`, or settle it with `safewrite resolve sw1_abc applied|not-applied`."
    )
    settled = errors.OutcomeUnknown(tool="cancel", attempts=1, may_still_land=False)
    assert "is unknown after 1 attempt; it is settled, but not yet seen" in str(settled)
    assert "`safewrite unknown`" in str(settled)
    assert "`safewrite resolve KEY applied" in str(settled)


def test_an_unknown_of_a_ledger_that_cannot_be_read_says_so() -> None:
    """No attempt is known of: neither a key to look at nor a person's word helps, the database does."""
    said = str(errors.OutcomeUnknown(tool="cancel", reason="ledger_unavailable"))
    assert said.startswith(
        "Whether `cancel` was applied is unknown (`ledger_unavailable`): the ledger cannot be read."
    )
    assert "This call sent nothing" in said
    assert "call again in the same run and turn" in said
    assert "0 attempts" not in said
    behind = str(errors.OutcomeUnknown(**CARRIED, reason="ledger_unavailable"))
    assert "after 2 attempts; it may still land" in behind


def test_an_unknown_that_another_intent_caused_names_that_one() -> None:
    """A blocked call points at the key of the open intent, not at its own."""
    error = errors.OutcomeUnknown(**CARRIED, blocked_by_key="sw1_other")
    assert "`cancel` was not sent: an earlier call" in str(error)
    assert "`safewrite show sw1_other`" in str(error)
    assert "sw1_abc" not in str(error) + error.for_model()
    assert ".options(beside_unknown=True)" in str(error)
    assert error.for_model().startswith("This call sent nothing, because an earlier call with the same wish")


def test_a_write_not_sent_beside_an_applied_one_names_that_one() -> None:
    """An equal wish with other values, already applied, is no invitation to call again."""
    error = errors.WriteNotSent(**CARRIED, blocked_by_key="sw1_other")
    assert "`safewrite show sw1_other`" in str(error)
    assert "took effect (key `sw1_other`). Do not call it again" in error.for_model()


def test_refusals_say_that_it_is_safe_to_call_again() -> None:
    """A refused write sent nothing, and the model may ask again."""
    for kind in (errors.WriteNotSent, errors.BudgetExhausted, errors.BreakerOpen, errors.LedgerUnavailable):
        error = kind(tool="cancel", reason="because")
        assert str(error).startswith("`cancel` was not sent (`because`)")
        assert "Nothing is open" in str(error)
        assert error.for_model() == (
            "`cancel` did not take effect (`because`), and no attempt made so far still can. "
            "Nothing has to be undone. You may call it again if it is still wanted."
        )


def test_what_was_sent_and_is_proven_not_applied_is_not_called_never_sent() -> None:
    """Sent, and without effect: other words than for a call that was refused, and as safe to call again."""
    error = errors.WriteNotSent(tool="cancel", reason="proven_absent", attempts=2)
    assert "not sent" not in str(error)
    assert "none of its attempts (2) took effect" in str(error)
    assert "safe to call it again" in str(error)


@pytest.mark.parametrize("reason", ["person", "key_burnt"])
def test_what_is_settled_for_good_is_no_invitation_to_call_again(reason: str) -> None:
    """Nothing is sent again in that turn, and the other side did not say no."""
    error = errors.WriteNotSent(**CARRIED, reason=reason)
    for text in (str(error), error.for_model()):
        assert "safe to call" not in text
        assert "You may call it again" not in text
        assert "said no" not in text
    assert "not sent again" in str(error)
    assert "Do not call it again in this turn" in error.for_model()


def test_a_block_by_an_open_wish_names_all_that_ends_it() -> None:
    """A read, a delivery, a person's word, or the wish to pass."""
    error = errors.OutcomeUnknown(**CARRIED, blocked_by_key="sw1_other")
    for way in ("reconcile function", "sw.deliver", "safewrite resolve sw1_other", "beside_unknown=True"):
        assert way in str(error)


def test_a_rejection_is_not_to_be_repeated_unchanged() -> None:
    """The dependency said no: the model corrects the arguments or reports it."""
    error = errors.WriteRejected(**CARRIED, reason="http_422")
    assert "rejected by its dependency (`http_422`)" in str(error)
    assert "The other side said no. Do not repeat it unchanged" in error.for_model()


@pytest.mark.parametrize(
    ("parameters", "listed"),
    [(("a",), "`a`"), (("a", "b"), "`a` and `b`"), (("a", "b", "c"), "`a`, `b` and `c`")],
)
def test_misuse_names_the_parameters(parameters: tuple[str, ...], listed: str) -> None:
    """Names of parameters stand in the message and in the text for the model."""
    for kind in (errors.MissingTarget, errors.IntentMismatch):
        error = kind(tool="cancel", parameters=parameters)
        assert listed in str(error)
        assert listed in error.for_model()
        assert "Nothing was sent" in error.for_model()


def test_faults_of_the_set_up_are_no_matter_for_a_model() -> None:
    """What only a person can mend is said to be so."""
    for kind in (
        errors.SafeWriteError,
        errors.NoRunContext,
        errors.DuplicateTool,
        errors.ConfigurationError,
        errors.SchemaOutdated,
    ):
        assert "Calling it again will not help" in kind(tool="cancel").for_model()


def test_in_flight_and_value_not_kept_say_what_is_known() -> None:
    """Neither invites a second call; both say how to look."""
    flying = errors.IntentInFlight(**CARRIED)
    assert isinstance(flying, errors.OutcomeUnknown)
    assert "wait for that call" in str(flying)
    lost = errors.ValueNotKept(**CARRIED, reason="redacted")
    assert "was applied, but its value was not kept and cannot be replayed (`redacted`)" in str(lost)
    for error in (flying, lost):
        assert "for the same target" in error.for_model()
        assert error.for_model().endswith("`safewrite show sw1_abc`.")


def test_exceptions_of_an_author_are_plain_and_marked() -> None:
    """`NotSent` and `Rejected` tell safewrite something; they are no `SafeWriteError`."""
    sent, said_no = errors.NotSent("no route", again=False), errors.Rejected("limit reached")
    assert not isinstance(sent, errors.SafeWriteError)
    assert not isinstance(said_no, errors.SafeWriteError)
    assert (sent._safewrite_finding, said_no._safewrite_finding) == ("not_sent", "rejected")
    assert errors.NotSent().again is True
    for error in (sent, said_no):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), again.args, vars(again)) == (type(error), error.args, vars(error))


# What a language model is told ------------------------------------------------------------------------------------

EVERY_FATE = list(
    itertools.product(
        OutcomeState,
        ("", "read_timeout"),
        (False, True),
        (False, True),
        (None, "sw1_abc"),
        (None, "cancel"),
        (None, "sw1_other"),
        (None, False, True),
        ("", "response", "goal_state", "person"),
    )
)


def tell(fate: tuple) -> str:
    """Return the text for one point of the input space."""
    *given, again, evidence = fate
    return words.for_model(*given, again=again, evidence=evidence)


def test_only_a_proven_negative_may_be_called_again() -> None:
    """Over the whole input space: applied and unknown forbid a second call, not applied never does outright."""
    for fate in EVERY_FATE:
        text = tell(fate)
        forbids = re.search(r"Do not call (it|this tool) again for the same target", text) is not None
        assert forbids == (fate[0] is not OutcomeState.NOT_APPLIED), text


def test_the_state_told_is_the_state_given() -> None:
    """Over the whole input space: the three states cannot be mistaken for one another."""
    for fate in EVERY_FATE:
        text = tell(fate)
        assert ("did not take effect" in text) == (fate[0] is OutcomeState.NOT_APPLIED), text
        assert ("not known whether" in text) == (fate[0] is OutcomeState.UNKNOWN), text


def test_work_that_may_still_run_is_said_to() -> None:
    """Over the whole input space: "may still be running" exactly where something may still land."""
    for fate in EVERY_FATE:
        if fate[0] is not OutcomeState.NOT_APPLIED:
            assert ("may still be running" in tell(fate)) == fate[2]


def test_no_text_has_a_gap() -> None:
    """Over the whole input space: sentences, one space apart, none of them about `None`."""
    for fate in EVERY_FATE:
        text = tell(fate)
        assert text[0].isupper() or text[0] == "`"
        assert text.endswith(".")
        assert not re.search(r"  |None|\(\)|``| [.,;]", text), text
        assert not re.search(r"[a-z`)]\. [a-z]|, The |What The", text), text


def test_an_unknown_tells_known_running_and_way_out() -> None:
    """The text for an unknown, word for word."""
    assert words.for_model("unknown", "read_timeout", True, False, "sw1_abc", "cancel") == (
        "It is not known whether `cancel` took effect (`read_timeout`). The work may still be running and may yet take "
        "effect. Do not call this tool again for the same target: the write could happen twice. Report it as unknown, "
        "neither as done nor as failed. A person can look at it with `safewrite show sw1_abc`."
    )
    settled = words.for_model("unknown", "", False, False, None, None)
    assert "Nothing is running any more, but nobody has seen whether it took effect." in settled
    assert settled.endswith("A person can list what is open with `safewrite unknown`.")


def test_an_applied_write_tells_who_did_it() -> None:
    """Replayed, done by an equal wish, a goal that was only seen, a person's word: each is said."""
    applied = OutcomeState.APPLIED
    last = "Do not call it again for the same target."
    assert (
        words.for_model(applied, "returned", False, False, "k", "cancel") == f"`cancel` took effect. {last}"
    )
    assert words.for_model(applied, "returned", False, True, "k", None) == (
        f"The write took effect. This is the recorded outcome of that write; nothing was sent now. {last}"
    )
    assert words.for_model(applied, "", False, True, "k", "cancel", "sw1_other") == (
        "`cancel` took effect. An earlier call with the same wish did it (key `sw1_other`); nothing was sent now. "
        + last
    )
    assert words.for_model(applied, "", True, False, "k", None, evidence="goal_state") == (
        "What the write was to bring about is so: a read has seen it, though not who did it. "
        f"An earlier attempt may still be running. {last}"
    )
    assert "took effect, on the word of the person who looked." in words.for_model(
        applied, "", False, True, "k", "cancel", evidence="person"
    )


def test_a_negative_outcome_tells_whether_asking_again_helps() -> None:
    """Never sent, refused by the dependency, or not known which."""

    def told(again: bool | None) -> str:
        return words.for_model("not_applied", "", False, True, None, "cancel", again=again)

    assert "You may call it again" in told(True)
    assert "correct the arguments, or report the refusal" in told(False)
    assert "helps only if the reason is gone" in told(None)
    assert "This is the recorded outcome" in told(None)


def test_a_state_that_does_not_exist_is_refused() -> None:
    """There are three outcomes; "failed" is none of them."""
    with pytest.raises(ValueError, match="failed"):
        words.for_model("failed", "", False, False, None, None)
