"""Tool dialogues: five tools, their markup (DeepSeek-V4's DSML), and random questions that need them."""

import datetime
import json
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from ds4c_runtime.chat import tools_text
from texts import SYLLABLES, TRADES, UNITS

BOS, EOS, PAD = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"
USER, ASSISTANT, THINK, END_THINK, DSML = "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "｜DSML｜"
MARKERS = (
    BOS,
    EOS,
    PAD,
    USER,
    ASSISTANT,
    THINK,
    END_THINK,
    DSML,
    "<｜begin▁sys｜>",
    "<｜end▁sys｜>",
    "<｜latest_reminder｜>",
    "<｜action｜>",
    "<｜query｜>",
    "<｜task｜>",
    "<｜title｜>",
    "<｜noise｜>",
)
"""All markers of the vocabulary: the first three have ids 0 to 2, the others the last ids."""

Json = str | float | list[int]


def call_markup(name: str, arguments: Mapping[str, Json]) -> str:
    """The block by which the model calls one tool; strings as they are, everything else as JSON."""
    lines = [f"\n\n<{DSML}tool_calls>", f'<{DSML}invoke name="{name}">']
    for key, value in arguments.items():
        text, is_string = (value, "true") if isinstance(value, str) else (json.dumps(value), "false")
        lines.append(f'<{DSML}parameter name="{key}" string="{is_string}">{text}</{DSML}parameter>')
    return "\n".join([*lines, f"</{DSML}invoke>", f"</{DSML}tool_calls>"])


def result_markup(text: str) -> str:
    """What a tool returned, as the user turn that carries it."""
    return f"<tool_result>{text}</tool_result>"


def _schema(name: str, description: str, properties: Mapping[str, object]) -> dict[str, object]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"name": name, "description": description, "parameters": parameters}


_STRING, _NUMBER, _INTEGER = {"type": "string"}, {"type": "number"}, {"type": "integer"}
TOOLS: dict[str, dict[str, object]] = {
    "calc": _schema("calc", "Evaluate an arithmetic expression.", {"expression": _STRING}),
    "convert": _schema(
        "convert", "Convert a value between units.", {"value": _NUMBER, "from": _STRING, "to": _STRING}
    ),
    "add_days": _schema("add_days", "Add days to a date.", {"date": _STRING, "days": _INTEGER}),
    "lookup": _schema("lookup", "Look up a name in the directory.", {"name": _STRING}),
    "total": _schema("total", "Sum a list of numbers.", {"values": {"type": "array", "items": _NUMBER}}),
}


def tools_header(rng: Random, names: list[str]) -> str:
    """DeepSeek-V4's system text that offers tools, in random order."""
    shuffled = list(names)
    rng.shuffle(shuffled)
    return tools_text(TOOLS[name] for name in shuffled)


@dataclass(frozen=True)
class Task:
    """A question that needs one tool."""

    question: str
    thought: str
    tool: str
    arguments: Mapping[str, Json]
    result: str
    answers: tuple[str, ...]
    """All wordings that count as right."""


def person(rng: Random) -> str:
    """A made-up name of two words."""

    def word() -> str:
        return "".join(rng.choice(SYLLABLES) for _ in range(rng.choice([2, 2, 3]))).capitalize()

    return word() + " " + word()


def number(rng: Random, *, four_digits: bool = True) -> int:
    """A positive number, mostly of two or three digits."""
    digits = rng.choice([1, 2, 2, 2, 3, 3, 4][: 7 if four_digits else 6])
    return rng.randint(10 ** (digits - 1), 10**digits - 1)


def plain(value: float) -> str:
    """A number as a person writes it: no trailing zeros, at most three decimals."""
    return str(int(value)) if float(value).is_integer() else f"{value:.3f}".rstrip("0").rstrip(".")


OPERATIONS: dict[str, tuple[str, Callable[[int, int], int], tuple[str, ...]]] = {
    "*": (
        "product",
        operator.mul,
        ("{a} times {b}", "the product of {a} and {b}", "{a} multiplied by {b}", "{a} * {b}"),
    ),
    "+": ("sum", operator.add, ("{a} plus {b}", "the sum of {a} and {b}", "{a} + {b}")),
    "-": ("difference", operator.sub, ("{a} minus {b}", "the difference of {a} and {b}", "{a} - {b}")),
}
CALC_QUESTIONS = (
    "What is {}?",
    "Calculate {}.",
    "Compute {}.",
    "Please work out {}.",
    "How much is {}?",
    "I need {}.",
)


def calc_task(rng: Random) -> Task:
    """One operation on two numbers."""
    sign = rng.choice("**++-")
    a, b = number(rng), number(rng, four_digits=False)
    if sign == "-" and b > a:
        a, b = b, a
    noun, function, phrasings = OPERATIONS[sign]
    phrase = rng.choice(phrasings).format(a=a, b=b)
    question = rng.choice(CALC_QUESTIONS).format(phrase)
    expression, result = f"{a} {sign} {b}", plain(function(a, b))
    answers = (f"{expression} = {result}.", f"The result is {result}.")
    return Task(
        question, f"This is a {noun}. I will use calc.", "calc", {"expression": expression}, result, answers
    )


def convert_task(rng: Random) -> Task:
    """One value from one unit to another, either way."""
    source, target, factor = rng.choice(UNITS)
    if rng.random() < 0.35:
        source, target, factor = target, source, 1 / factor
    value = rng.choice([rng.randint(2, 99), rng.randint(100, 999), round(rng.uniform(1, 50), 1)])
    result = plain(value * factor)
    phrasings = (
        "Convert {v} {f} to {t}.",
        "How many {t} are {v} {f}?",
        "What is {v} {f} in {t}?",
        "Express {v} {f} in {t}.",
    )
    question = rng.choice(phrasings).format(v=value, f=source, t=target)
    thought = f"This is a unit conversion from {source} to {target}."
    answers = (f"{value} {source} is {result} {target}.", f"{value} {source} = {result} {target}.")
    arguments: dict[str, Json] = {"value": value, "from": source, "to": target}
    return Task(question, thought, "convert", arguments, result, answers)


def add_days_task(rng: Random) -> Task:
    """A date and a number of days."""
    date = datetime.date(rng.randint(1990, 2035), rng.randint(1, 12), rng.randint(1, 28))
    days = rng.randint(2, 400)
    result = str(date + datetime.timedelta(days))
    phrasings = (
        "What date is {n} days after {d}?",
        "Add {n} days to {d}.",
        "Which day comes {n} days after {d}?",
        "Today is {d}. What is the date in {n} days?",
    )
    question = rng.choice(phrasings).format(n=days, d=date)
    answers = (f"{days} days after {date} is {result}.", f"The date is {result}.")
    arguments: dict[str, Json] = {"date": str(date), "days": days}
    return Task(
        question, "This is a date question. I will use add_days.", "add_days", arguments, result, answers
    )


def lookup_task(rng: Random) -> Task:
    """A person in a directory; the answer copies one field of a JSON object."""
    name, trade = person(rng), rng.choice(TRADES)
    town = person(rng).split()[0]
    phone = f"{rng.randint(100, 999)}-{rng.randint(1000, 9999)}"
    field = rng.randint(0, 2)
    phrasings = (
        ("Who is {}?", "Look up {}.", "What does {} do?"),
        ("Where does {} live?", "Find the home of {}."),
        ("What is the phone number of {}?", "I want to call {}. What is the number?"),
    )
    question = rng.choice(phrasings[field]).format(name)
    result = json.dumps({"job": trade, "town": town, "phone": phone})
    answers = (
        f"{name} {trade} in {town}.",
        f"{name} lives in {town}.",
        f"The phone number of {name} is {phone}.",
    )
    thought = f"I will look up {name} in the directory."
    return Task(question, thought, "lookup", {"name": name}, result, (answers[field],))


def total_task(rng: Random) -> Task:
    """A list of three to five numbers."""
    values = [rng.randint(1, 99) for _ in range(rng.randint(3, 5))]
    result, listed = str(sum(values)), ", ".join(map(str, values))
    phrasings = ("Add up {}.", "What is the total of {}?", "Sum these numbers: {}.")
    question = rng.choice(phrasings).format(listed)
    answers = (f"The total is {result}.", f"The sum of {listed} is {result}.")
    return Task(question, "This is a list. I will use total.", "total", {"values": values}, result, answers)


TASKS: dict[str, Callable[[Random], Task]] = {
    "calc": calc_task,
    "convert": convert_task,
    "add_days": add_days_task,
    "lookup": lookup_task,
    "total": total_task,
}
TASK_MIX = ["calc"] * 4 + ["convert"] * 3 + ["add_days"] * 2 + ["lookup"] * 3 + ["total"] * 2
