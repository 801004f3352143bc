"""`runs`, `run`, `show` and `unknown`: what is on record, for people in a pipe and for programs."""

from __future__ import annotations

import sqlite3
from datetime import datetime
from pathlib import Path

import pytest

import safewrite
from safewrite import SafeWrite
from tests.cli.conftest import Command, Filled
from tests.cli.test_opening import change


def test_runs_are_listed_in_numbers_the_newest_first(run: Command, filled: Filled) -> None:
    """One line a run, tab-separated, under a line of names."""
    done = run("runs", "--url", filled.url)
    assert (done.code, done.err) == (0, "")
    assert [row["run"] for row in done.rows] == ["run-2", "run-1"]
    numbers = {
        name: done.rows[1][name]
        for name in ("intents", "applied", "not applied", "unknown", "attempts", "alarms")
    }
    assert numbers == {
        "intents": "4", "applied": "1", "not applied": "2", "unknown": "1", "attempts": "3", "alarms": "0",
    }  # fmt: skip


def test_runs_can_be_narrowed(run: Command, filled: Filled) -> None:
    """By namespace and by number."""
    assert [r["run"] for r in run("runs", "--url", filled.url, "--namespace", "default").rows] == ["run-1"]
    assert [r["run"] for r in run("runs", "--url", filled.url, "--limit", "1").rows] == ["run-2"]


def test_runs_as_json(run: Command, filled: Filled) -> None:
    """One document; times are ISO 8601 in UTC."""
    found = run("runs", "--url", filled.url, "--json").document["runs"]
    assert [(r["namespace"], r["run"], r["intents"], r["unknown"]) for r in found] == [
        ("acme", "run-2", 1, 0),
        ("default", "run-1", 4, 1),
    ]
    began, last = (datetime.fromisoformat(found[1][name]) for name in ("began_at", "last_at"))
    assert began <= last
    assert found[1]["began_at"].endswith("Z")


def test_a_run_shows_its_intents_in_order(run: Command, filled: Filled) -> None:
    """Every intent with turn, tool, target, outcome, attempts, and its key to look further."""
    rows = run("run", "run-1", "--url", filled.url).rows
    assert [(r["turn"], r["tool"], r["target"], r["outcome"], r["attempts"]) for r in rows] == [
        ("1", "cancel", "sub_1", "applied", "1 applied (returned)"),
        ("1", "cancel", "lost", "unknown", "1 unknown (read_timeout)"),
        ("1", "cancel", "no", "not applied", "1 not applied (rejected)"),
        ("2", "cancel", "lost", "not applied", "none: nothing was sent"),
    ]
    assert [r["key"] for r in rows] == [filled.keys[n] for n in ("applied", "lost", "rejected", "held back")]


def test_a_run_as_json_has_every_row(run: Command, filled: Filled) -> None:
    """Programs get the whole: attempts, and rows with the rule that decided each."""
    document = run("run", "run-1", "--url", filled.url, "--json").document
    assert document["run"] == "run-1"
    applied = document["intents"][0]
    assert [(r["event"], r["rule"], r["outcome"]) for r in applied["rows"]] == [
        ("claimed", "R1", "unknown"),
        ("ended", "A1", "applied"),
    ]
    assert [a["outcome"] for a in applied["attempts"]] == ["applied"]


def test_a_run_that_is_not_there_is_an_error(run: Command, filled: Filled) -> None:
    """A misspelt run is not an empty one."""
    done = run("run", "run-9", "--url", filled.url)
    assert (done.code, done.out) == (2, "")
    assert (
        done.err
        == "safewrite: There is no run `run-9` in the ledger. `safewrite runs` lists those that are.\n"
    )


def test_a_run_in_another_namespace_is_not_there(run: Command, filled: Filled) -> None:
    """The namespace narrows."""
    assert run("run", "run-1", "--namespace", "acme", "--url", filled.url).code == 2


@pytest.mark.parametrize("name", ["key", "id", "attempt", "trace"])
def test_an_intent_is_found_by_any_of_its_names(run: Command, filled: Filled, name: str) -> None:
    """Key, intent id, attempt id and trace lead to the same."""
    with sqlite3.connect(filled.path) as ledger:
        (attempt,) = ledger.execute(
            "SELECT attempt_id FROM safewrite_attempt WHERE key = ?", (filled.keys["lost"],)
        ).fetchone()
    ledger.close()
    names = {"key": filled.keys, "id": filled.ids, "trace": filled.traces, "attempt": {"lost": attempt}}
    document = run("show", names[name]["lost"], "--url", filled.url, "--json").document
    assert [i["key"] for i in document["intents"]] == [filled.keys["lost"]]


def test_show_tells_the_whole_story(run: Command, filled: Filled) -> None:
    """Outcome, summary, arguments, attempts, and for every row what happened, what was decided, and why."""
    out = run("show", filled.keys["lost"], "--url", filled.url).out
    assert out.startswith(
        "outcome  unknown\nsummary  Unknown after 1 attempt. Attempt 1: unknown (`read_timeout`)."
    )
    assert f"\nkey         {filled.keys['lost']}\n" in out
    assert (
        "\narguments   sub_id = lost\n            reason = asked for it\n            token = [redacted]\n"
        in out
    )
    lines = [line.split("\t") for line in out.splitlines()]
    table = lines[lines.index(["Rows"]) + 1 :]
    assert table[0][:6] == ["row", "at", "event", "what happened", "then", "rule"]
    assert [(row[0], row[2], row[5]) for row in table[1:3]] == [("1", "claimed", "R1"), ("2", "ended", "U1")]
    assert table[2][4] == "answer that it is unknown, and may still land (`no_reconcile`)"
    assert table[2][6] == "Open, and there is no way to look: unknown."


def test_show_tells_the_exception_without_its_secrets(run: Command, filled: Filled) -> None:
    """The text of the error stands below, what looks like a secret taken out."""
    out = run("show", filled.keys["lost"], "--url", filled.url).out
    assert out.splitlines()[-1].startswith("row 2  httpx.ReadTimeout: no answer, and password=[redacted]")


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_no_secret_is_shown(run: Command, filled: Filled, options: tuple[str, ...]) -> None:
    """What was redacted is nowhere in what is printed, nor is what an exception let slip."""
    out = "".join(run("show", key, "--url", filled.url, *options).out for key in filled.keys.values())
    assert "t0p-s3cret" not in out
    assert "hunter2" not in out


def test_show_tells_the_value(run: Command, filled: Filled) -> None:
    """A kept value is shown as JSON; the None of a tool that returns nothing as null."""
    out = run("show", filled.keys["applied"], "--url", filled.url).out
    assert '\nvalue       {"id": "sub_1", "reason": "asked for it"}\n' in out
    assert "\nvalue       null\n" in run("show", filled.keys["closed"], "--url", filled.url).out
    shown = run("show", filled.keys["applied"], "--url", filled.url, "--json").document["intents"][0]
    assert (shown["value"], shown["value_kept"]) == ({"id": "sub_1", "reason": "asked for it"}, True)
    assert (shown["arguments"], shown["redacted"]) == (
        {"sub_id": "sub_1", "reason": "asked for it"},
        ["token"],
    )


def test_a_target_of_several_parts_is_shown_as_it_is(run: Command, filled: Filled) -> None:
    """In JSON it is the value itself."""
    assert (
        '\ntarget      {"account":"acme","year":2025}\n'
        in run("show", filled.keys["closed"], "--url", filled.url).out
    )
    shown = run("show", filled.keys["closed"], "--url", filled.url, "--json").document["intents"][0]
    assert shown["target"] == {"account": "acme", "year": 2025}


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_rows_that_were_altered_are_told_beside_what_they_say(
    run: Command, filled: Filled, options: tuple[str, ...]
) -> None:
    """An auditor is not shown altered rows as if they were whole: each flaw is a line, and the exit code is 1."""
    assert run("show", filled.keys["lost"], "--url", filled.url, *options).code == 0
    change(
        filled.path,
        "DROP TRIGGER safewrite_audit_no_update",
        "UPDATE safewrite_audit SET body = replace(body, 'unknown', 'applied') WHERE sequence = 2",
    )
    done = run("show", filled.keys["lost"], "--url", filled.url, *options)
    assert done.code == 1
    assert done.out
    first, *others = [line for line in done.err.splitlines() if "is gone" not in line]
    assert first.startswith(f"safewrite: {filled.keys['lost']}, row 2: ")
    assert first.endswith("Somebody has altered the ledger.")
    assert all(line.startswith("safewrite: sw1_") for line in others)
    assert run("show", filled.keys["closed"], "--url", filled.url).code == 0


def test_a_summary_that_was_altered_is_told(run: Command, filled: Filled) -> None:
    """The intent's own row is no row of the chain, and is named so."""
    change(filled.path, "UPDATE safewrite_intent SET outcome = 'not_applied' WHERE outcome = 'unknown'")
    done = run("show", filled.keys["lost"], "--url", filled.url)
    assert done.code == 1
    assert "its summary: " in done.err
    assert done.out.startswith("outcome  unknown\n")


def test_what_is_not_there_is_an_error(run: Command, filled: Filled) -> None:
    """A reference that leads nowhere is no empty answer."""
    done = run("show", "sw1_nothing", "--url", filled.url)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("safewrite: Nothing in the ledger has the key, id or trace `sw1_nothing`.")
    assert len(done.err.splitlines()) == 1
    assert run("show", "", "--url", filled.url).code == 2


def test_a_trace_shows_all_that_its_call_wrote_to(run: Command, tmp_path: Path) -> None:
    """A call that looked at another intent first is shown with it, its own beginning first."""
    url = f"sqlite:///{tmp_path / 'agent.db'}"
    with SafeWrite(url) as sw:

        @sw.write(target="sub_id")
        def cancel(sub_id: str) -> None:
            raise TimeoutError

        @cancel.reconcile
        def _(sub_id: str) -> safewrite.Inconclusive:
            return safewrite.Inconclusive("dark")

        with safewrite.run("run-1", deadline=1.5), safewrite.turn(1):
            first = cancel.outcome("sub_1")
        with safewrite.run("run-1", deadline=1.5), safewrite.turn(2):
            second = cancel.outcome("sub_1")
    shown = run("show", second.trace, "--url", url, "--json").document["intents"]
    assert [i["key"] for i in shown] == [second.key, first.key]
    out = run("show", second.trace, "--url", url).out
    assert out.count("outcome  ") == 2
    assert "\n\noutcome  unknown\n" in out


def test_unknown_lists_what_is_open(run: Command, filled: Filled) -> None:
    """Since when, whether it may still land, and until when."""
    (row,) = run("unknown", "--url", filled.url).rows
    assert (row["tool"], row["target"], row["run"], row["turn"]) == ("cancel", "lost", "run-1", "1")
    assert (row["attempts"], row["reason"], row["may still land"]) == ("1", "read_timeout", "yes")
    assert row["settles"].startswith("may still land until 20")
    assert row["key"] == filled.keys["lost"]


def test_what_is_settled_and_what_has_no_bound_are_told_apart(run: Command, tmp_path: Path) -> None:
    """The two unknowns, and the one that waits for a moment, read differently."""
    url = f"sqlite:///{tmp_path / 'agent.db'}"
    with SafeWrite(url) as sw:
        for name, bound in (("settled", 0.0), ("unbound", None)):

            @sw.write(
                target="sub_id", name=name, dependency=safewrite.Dependency("billing", work_bound=bound)
            )
            def lose(sub_id: str) -> None:
                raise TimeoutError

            with safewrite.run("run-1"), safewrite.turn(1):
                lose.outcome("sub_1")
    told = {row["tool"]: (row["may still land"], row["settles"]) for row in run("unknown", "--url", url).rows}
    assert told == {"settled": ("no", "settled"), "unbound": ("yes", "may still land, without a bound")}


def test_an_attempt_without_an_end_is_shown_with_gaps(run: Command, killed: Filled) -> None:
    """What is not known is an empty cell, never a guess."""
    out = run("show", killed.keys["killed"], "--url", killed.url).out
    (line,) = [line.split("\t") for line in out.splitlines() if line.startswith("1\tunknown\t")]
    assert line[2:4] == ["", ""]
    assert line[5] == ""
    assert "Its end was not seen." in out


def test_unknown_as_json(run: Command, filled: Filled) -> None:
    """The same for programs, the settling as an instant."""
    (found,) = run("unknown", "--url", filled.url, "--json").document["unknown"]
    since, settles = (datetime.fromisoformat(found[name]) for name in ("since", "settles_at"))
    assert 3599 <= (settles - since).total_seconds() <= 3610
    assert (found["target"], found["may_still_land"], found["lease_until"]) == ("lost", True, None)


def test_unknown_can_be_narrowed(run: Command, filled: Filled) -> None:
    """By tool, namespace and number; nothing left is a line of names alone, and an empty list."""
    assert len(run("unknown", "--url", filled.url, "--tool", "cancel", "--limit", "1").rows) == 1
    assert run("unknown", "--url", filled.url, "--tool", "close").rows == []
    assert run("unknown", "--url", filled.url, "--namespace", "acme", "--json").document == {"unknown": []}


def test_unknown_can_tell_scripts_by_its_exit_code(run: Command, filled: Filled) -> None:
    """Only when asked, and only when something is open."""
    assert run("unknown", "--url", filled.url).code == 0
    assert run("unknown", "--url", filled.url, "--exit-code").code == 1
    assert run("unknown", "--url", filled.url, "--exit-code", "--tool", "close").code == 0


def test_what_others_wrote_cannot_steer_a_terminal(run: Command, tmp_path: Path) -> None:
    """Escape sequences, tabs, line ends and lone surrogates are shown, not sent; JSON stays one document."""
    url = f"sqlite:///{tmp_path / 'agent.db'}"
    with SafeWrite(url) as sw:

        @sw.write(target="name", free_text=("text",))
        def make(name: str, text: str) -> str:
            return text

        with safewrite.run("run\x1b]0;owned\x07"), safewrite.turn("a\tb\nc"):
            outcome = make.outcome("x\x1b[31m", text="\u202e\ud800\x00 rm -rf")
    for args in (("runs",), ("run", "run\x1b]0;owned\x07"), ("show", outcome.key), ("unknown",)):
        out = run(*args, "--url", url).out
        assert not set(out) & set("\x1b\x07\x00\u202e\ud800")
        assert all(
            line.count("\t") == out.splitlines()[0].count("\t")
            for line in out.splitlines()
            if args[0] != "show"
        )
    shown = run("show", outcome.key, "--url", url, "--json")
    assert shown.out.isascii()
    text = "\u202e\ud800\x00 rm -rf".encode("utf-8", "surrogatepass").hex()
    assert shown.document["intents"][0]["arguments"]["text"] == {"$str": text}
    assert shown.document["intents"][0]["run"] == "run\x1b]0;owned\x07"


def test_what_reads_did_not_fetch_is_listed_with_their_run(run: Command, filled: Filled) -> None:
    """Counted beside the intents, told with its key under them, and shown by that; a run of reads alone is one, too."""
    with SafeWrite(filled.url) as sw:

        @sw.read(name="look")
        def look(customer: str) -> None:
            raise TimeoutError

        with safewrite.run("reads"), safewrite.turn(1), pytest.raises(safewrite.ReadFailed):
            look("cus_\x1b1")
        (missed,) = sw.audit.not_fetched(run="reads")
    counted = run("runs", "--url", filled.url).rows[0]
    assert (counted["run"], counted["intents"], counted["not fetched"]) == ("reads", "0", "1")
    told = run("run", "reads", "--url", filled.url).out
    assert 'Not fetched: look {"customer":"cus_\\u001b1"}: A read brought nothing, after 1 request' in told
    assert f"[{missed.key}]" in told
    (listed,) = run("run", "reads", "--url", filled.url, "--json").document["not_fetched"]
    assert (listed["key"], listed["event"], listed["reason"]) == (missed.key, "missed", "timeout")
    (shown,) = run("show", missed.key, "--url", filled.url, "--json").document["intents"]
    assert shown["summary"].startswith("A read brought nothing")
