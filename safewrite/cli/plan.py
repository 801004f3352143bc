"""`safewrite plan`: how to share a promised total among the calls of a task."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from safewrite.cli.exits import Exit, Stop
from safewrite.cli.options import AsJson, NoColor, option, session
from safewrite.cli.output import Output

if TYPE_CHECKING:
    from safewrite.core.plan import Plan, Row

_STRATEGIES = {
    "even_split": "even split",
    "p99": "p99 of a call",
    "fixed_cap": "cap alone",
    "deadline": "deadline and cap",
}

Seconds = float | None


def add_to(app: typer.Typer) -> None:
    """Add this command to the command line."""
    app.command("plan")(show_plan)


def show_plan(
    context: typer.Context,
    total: Annotated[float, option("--total", "SECONDS", "What was promised, all in all.")],
    calls: Annotated[str, option("--calls", "N", "Calls per task: 6, or shares, 4:70%,9:30%.")],
    percentiles: Annotated[
        list[str] | None,
        option("--percentile", "P=SECONDS", "Latency of a call: -p 50=0.4 -p 99=9.", "-p"),
    ] = None,
    rates: Annotated[
        list[str] | None, option("--rate", "CAP=SHARE", "Share of calls that a cap cuts: --rate 3=6%.")
    ] = None,
    median: Annotated[Seconds, option("--median", "SECONDS", "The median call, beside --rate.")] = None,
    samples: Annotated[
        str | None,
        option(
            "--samples",
            "FILE",
            "Seconds that calls took, parted by blanks, commas or lines; - reads standard input.",
        ),
    ] = None,
    turns: Annotated[int, typer.Option("--turns", metavar="N", help="Turns of the model.")] = 1,
    seconds_per_turn: Annotated[
        float, typer.Option("--seconds-per-turn", metavar="SECONDS", help="What the model takes for one.")
    ] = 0.0,
    gateway: Annotated[
        float, typer.Option("--gateway", metavar="SECONDS", help="What is spent before and after.")
    ] = 0.0,
    slack: Annotated[float, typer.Option("--slack", metavar="SECONDS", help="What is kept in hand.")] = 0.0,
    call_cap: Annotated[
        Seconds,
        option(
            "--cap", "SECONDS", "The cap of a call under the deadline. Default: half of what tools may use."
        ),
    ] = None,
    also_caps: Annotated[
        list[float] | None, option("--also-cap", "SECONDS", "A further cap, without and with a deadline.")
    ] = None,
    minimum: Annotated[
        float, typer.Option("--minimum", metavar="SECONDS", help="With less left, a call is refused.")
    ] = 1.0,
    tasks: Annotated[
        int | None, option("--tasks", "N", "How many tasks are simulated. Default: up to 20,000.")
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", help="The same seed simulates the same tasks.")
    ] = 0,
    as_json: AsJson = False,
    no_color: NoColor = False,
) -> None:
    """Compare ways to bound the calls of a task.

    Shows, for each cap, the share of calls that it cuts, the share of tasks that this hits, and the worst case: for
    an even split, for the p99 of a call as its cap, and for a deadline with a cap.
    """
    from safewrite.planning import plan

    counts = _counts(calls)
    made = plan(
        total,
        calls=counts,
        percentiles=None if percentiles is None else _pairs(percentiles, "--percentile"),
        samples=None if samples is None else _samples(samples),
        rates=None if rates is None else _pairs(rates, "--rate"),
        median=median,
        turns=turns,
        seconds_per_turn=seconds_per_turn,
        gateway=gateway,
        slack=slack,
        call_cap=call_cap,
        caps=also_caps or (),
        minimum=minimum,
        tasks=tasks,
        seed=seed,
    )
    output = session(context, as_json=as_json, no_color=no_color).output
    if as_json:
        output.document(made.to_dict())
    else:
        _show(output, made)


def _show(output: Output, made: Plan) -> None:
    parts = f"gateway {_s(made.gateway)}, model {_s(made.model)}, slack {_s(made.slack)}"
    output.fields(
        [
            ("total", _s(made.total)),
            ("tools", f"{_s(made.tools)}, besides {parts}"),
            ("calls", f"{made.calls} at most per task, none with less than {_s(made.minimum)} left"),
            (
                "typical",
                "not known" if made.typical is None else f"{_s(made.typical)} for the calls of a task",
            ),
            ("run deadline", f"{_s(made.run_deadline)}, if it is open while the model thinks"),
        ]
    )
    output.heading("What a cap does")
    names = (
        "strategy",
        "cap",
        "calls cut",
        "tasks hit",
        "worst case",
        "fits",
        "left after one worst",
        "times rest",
    )
    output.table(names, map(_cells, made.rows))
    simulated = [(row.cap, row.simulated) for row in made.rows if row.simulated is not None]
    if simulated:
        output.heading(f"Under the deadline, {simulated[0][1].tasks} tasks simulated")
        output.table(
            ("cap", "cut by cap", "cut by what was left", "refused", "tasks hit", "longest"),
            [
                (_s(cap), _share(s.cut_by_cap), _share(s.cut_by_remainder), _share(s.refused), _share(s.tasks_hit),
                 _s(s.longest))
                for cap, s in simulated
            ],
        )  # fmt: skip
    output.heading("To bear in mind")
    for text in made.notes:
        output.say(text)


def _cells(row: Row) -> list[str]:
    bound = "at most " if row.at_most else ""
    return [
        _STRATEGIES[row.strategy],
        _s(row.cap),
        bound + _share(row.calls_cut),
        bound + _share(row.tasks_hit),
        _s(row.worst),
        "yes" if row.fits else "no",
        _s(row.left_after_worst),
        "" if row.times_the_rest is None else f"{row.times_the_rest:.1f}",
    ]


def _s(seconds: float) -> str:
    return f"{round(seconds, 3):g} s"


def _share(share: float) -> str:
    return f"{share:.1%}"


# What is given, as people write it ----------------------------------------------------------------------------------


def _counts(text: str) -> int | dict[int, float]:
    try:
        if ":" not in text:
            return int(text)
        return {int(count): _number(share) for count, share in (part.split(":") for part in text.split(","))}
    except ValueError:
        raise Stop(
            f"`--calls` is {text!r}. Write a number, such as 6, or shares, such as 4:70%,9:30%.", Exit.USAGE
        ) from None


def _pairs(texts: list[str], option: str) -> dict[float, float]:
    pairs: dict[float, float] = {}
    for text in texts:
        for part in text.split(","):
            try:
                name, value = part.split("=")
                pairs[float(name)] = _number(value)
            except ValueError:
                example = "99=9.0" if option == "--percentile" else "3=6%"
                raise Stop(f"`{option}` is {part!r}. Write it as {example}.", Exit.USAGE) from None
    return pairs


def _number(text: str) -> float:
    text = text.strip()
    return float(text[:-1]) / 100 if text.endswith("%") else float(text)


def _samples(file: str) -> list[float]:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise Stop(f"`--samples`: {file} cannot be read: {why}.", Exit.USAGE) from None
    numbers = []
    for word in text.replace(",", " ").split():
        try:
            numbers.append(float(word))
        except ValueError:
            raise Stop(
                f"`--samples`: {word[:40]!r} in {file} is not a number of seconds.", Exit.USAGE
            ) from None
    return numbers
