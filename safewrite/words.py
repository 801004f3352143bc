"""What a language model is told: the one place for these sentences.

Every text says what is known, whether work may still be running, and what to do.  They are plain, because the
reader acts on them: a vague "it failed" after a lost response is what makes a model send the write twice.
"""

from __future__ import annotations

from safewrite.core.events import OutcomeState


def for_model(
    state: OutcomeState | str,
    reason: str,
    may_still_land: bool,
    replayed: bool,
    key: str | None,
    tool: str | None,
    blocked_by_key: str | None = None,
    *,
    again: bool | None = None,
    evidence: str = "",
) -> str:
    """Return what to tell a language model about the fate of one write.

    `blocked_by_key` is the key of another intent with the same wish: the one whose open outcome stopped this
    call, or whose applied outcome answers it.  `again` says, of a write that was not applied, whether asking
    again makes sense: True (it was never sent), False (the dependency said no), None (not known).  `evidence` is
    the outcome's: after `goal_state` nobody knows who reached the goal, after `person` it is a person's word.
    """
    known = OutcomeState(state)
    if known is OutcomeState.APPLIED:
        return _applied(named(tool, start=True), may_still_land, replayed, blocked_by_key, evidence)
    if known is OutcomeState.NOT_APPLIED:
        return _not_applied(named(tool, start=True), reason, replayed, again, evidence)
    return _unknown(named(tool), reason, may_still_land, key, blocked_by_key)


def _applied(name: str, may_still_land: bool, replayed: bool, other: str | None, evidence: str) -> str:
    if evidence == "goal_state":
        name = name.replace("The", "the", 1) if name.startswith("The ") else name
        parts = [f"What {name} was to bring about is so: a read has seen it, though not who did it."]
    else:
        parts = [f"{name} took effect{_on_whose_word(evidence)}."]
    if other is not None:
        parts.append(f"An earlier call with the same wish did it (key `{other}`); nothing was sent now.")
    elif replayed:
        parts.append("This is the recorded outcome of that write; nothing was sent now.")
    if may_still_land:
        parts.append("An earlier attempt may still be running.")
    parts.append("Do not call it again for the same target.")
    return " ".join(parts)


def _not_applied(name: str, reason: str, replayed: bool, again: bool | None, evidence: str) -> str:
    word = _on_whose_word(evidence)
    parts = [f"{name} did not take effect{_because(reason)}{word}, and no attempt made so far still can."]
    if replayed:
        parts.append("This is the recorded outcome of that write; nothing was sent now.")
    if again is False and (settled := SETTLED.get(reason)) is not None:
        parts.append(f"{settled} Do not call it again in this turn: the answer would be the same.")
    elif again is False:
        parts.append("The other side said no.")
        parts.append("Do not repeat it unchanged: correct the arguments, or report the refusal.")
    elif again:
        parts.append("Nothing has to be undone. You may call it again if it is still wanted.")
    else:
        parts.append(
            "Nothing has to be undone. Calling it again is safe, but helps only if the reason is gone."
        )
    return " ".join(parts)


SETTLED = {
    "person": "A person has looked and settled it.",
    "key_burnt": "The other side would only repeat the error that it stored.",
}
"""Reasons for which nothing is sent again, though the other side did not say no."""


def _unknown(name: str, reason: str, may_still_land: bool, key: str | None, other: str | None) -> str:
    if other is None:
        parts = [f"It is not known whether {name} took effect{_because(reason)}."]
    else:
        blocked = "This call sent nothing, because an earlier call with the same wish is still open"
        parts = [f"{blocked}: it is not known whether {name} took effect (key `{other}`)."]
    if may_still_land:
        parts.append("The work may still be running and may yet take effect.")
    else:
        parts.append("Nothing is running any more, but nobody has seen whether it took effect.")
    parts.append("Do not call this tool again for the same target: the write could happen twice.")
    parts.append("Report it as unknown, neither as done nor as failed.")
    parts.append(look(other or key))
    return " ".join(parts)


def in_flight(key: str | None, tool: str | None) -> str:
    """Say that the same write is being carried out by another call."""
    return (
        f"Another call is carrying out {named(tool)} for the same target just now; this call sent nothing. "
        "The work may still be running and may yet take effect. "
        "Do not call this tool again for the same target: wait for the other call. " + look(key)
    )


def value_not_kept(key: str | None, tool: str | None) -> str:
    """Say that the write took effect, and that its result cannot be shown again."""
    return (
        f"{named(tool, start=True)} took effect, but its result was not kept and cannot be shown again; nothing "
        "was sent now. Do not call it again for the same target. If you need the result, read the present state "
        f"with a reading tool. {look(key)}"
    )


def beside_applied(tool: str | None, other: str) -> str:
    """Say that another call has already done this, with other values."""
    return (
        f"This call sent nothing: an earlier call of {named(tool)} for the same target, with other values, took "
        f"effect (key `{other}`). Do not call it again for the same target; report that the earlier values hold."
    )


def missing_target(tool: str | None, names: tuple[str, ...]) -> str:
    """Say which arguments must name what the write is about."""
    which = f"{listed(names)} must say" if names else "The arguments must say"
    return (
        f"Nothing was sent. {which} what {named(tool)} is to act on, and must not be empty. "
        "Call it again with the identifier; if you do not know it, find it out or ask. Do not invent one."
    )


def mismatch(key: str | None, tool: str | None, names: tuple[str, ...]) -> str:
    """Say which parameters differ from the first call of the same write."""
    what = f"other values of {listed(names)}" if names else "other values"
    return (
        f"Nothing was sent by this call: in this turn {named(tool)} was already called for the same target with "
        f"{what}, and that first call stands. Do not repeat the call with changed arguments; report the difference. "
        + look(key)
    )


def set_up(tool: str | None, problem: str) -> str:
    """Say that the program around the tool is set up wrongly: nothing that a model could mend."""
    return (
        f"Nothing was sent: {named(tool)} cannot run, because {problem}. "
        "Calling it again will not help. Report this as a fault of the set-up, which a person must correct."
    )


def not_fetched(tool: str, target: str, reason: str, reached: str, *, part: bool) -> str:
    """Say that a read brought nothing, or only a part: missing is not empty."""
    about = f"{named(tool)} for {target}"
    if part:
        how = f": it reached {reached}" if reached else ""
        beyond = "What lies beyond is not known: do not report the part as the whole."
        return f"{about} fetched only a part{how}{_because(reason)}. {beyond}"
    how = f" It had reached {reached}." if reached else ""
    return (
        f"{about} fetched nothing{_because(reason)}, and changed nothing.{how} "
        "Do not take it for empty or absent: say that it could not be read, or read it again later."
    )


def look(key: str | None) -> str:
    """Say how a person finds out more."""
    if key is None:
        return "A person can list what is open with `safewrite unknown`."
    return f"A person can look at it with `safewrite show {key}`."


def named(tool: str | None, *, start: bool = False) -> str:
    """Return the tool's name as code, or words in its place; `start` begins a sentence."""
    if tool:
        return f"`{tool}`"
    return "The write" if start else "the write"


def listed(names: tuple[str, ...]) -> str:
    """Return names as code, joined for a sentence."""
    *rest, last = (f"`{name}`" for name in names)
    return f"{', '.join(rest)} and {last}" if rest else last


def _because(reason: str) -> str:
    return f" (`{reason}`)" if reason else ""


def _on_whose_word(evidence: str) -> str:
    return ", on the word of the person who looked" if evidence == "person" else ""
