"""The corpus: random documents of dialogue and prose, marked where the model is to learn.

Everything but the two books is our own text. The books are in the public domain: the Devil's Dictionary
(Debian package dict-devil) and Genesis, Proverbs and Ecclesiastes of the King James Bible (package bible-kjv;
public domain outside the United Kingdom). They give the prose; without them the corpus has none.
"""

import gzip
import re
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tasks import (
    ASSISTANT,
    BOS,
    END_THINK,
    EOS,
    TASK_MIX,
    TASKS,
    THINK,
    TOOLS,
    USER,
    Task,
    call_markup,
    person,
    result_markup,
    tools_header,
)
from texts import FACT_QUESTIONS, FACTS, HELD_OUT_QUESTIONS, SMALL_TALK

KINDS = ("tool", "fact", "chat", "echo", "devil", "count")
KIND_WEIGHTS = (50, 22, 4, 8, 10, 6)
PROSE_SHARE = 0.17
TRAINED_SHARE = 0.95
"""The rest of both books is held out."""


@dataclass(frozen=True)
class Segment:
    """A piece of a document; `learn` marks what the model writes, the rest is what it reads."""

    text: str
    learn: bool


@dataclass(frozen=True)
class Books:
    """Entries of the dictionary and verses, in order."""

    entries: tuple[str, ...]
    verses: tuple[str, ...]

    @classmethod
    def read(cls, folder: Path) -> "Books":
        """Read `devil.dict.dz` and `kjv.txt` (`bible -f -l99999 gen1:1-rev22:21`) from a folder."""
        with gzip.open(folder / "devil.dict.dz", "rt", errors="replace") as file:
            text = file.read()
        text = text[text.index("ABASEMENT, n.") :]  # before it stands the transcriber's header
        parts = re.split(r"\n\n(?=[A-Z][A-Z\'\- ]+,? (?:n|adj|v|pp|adv|x)\.)", text)
        entries = [re.sub(r"\n(?!\n|    )", " ", part.strip()) for part in parts]
        entries = [re.sub(r"  +", " ", entry) for entry in entries if len(entry) < 900]
        with (folder / "kjv.txt").open(errors="replace") as file:
            lines = [line.split(" ", 1) for line in file if re.match(r"(Ge|Prv|Ecc)\d", line)]
        verses = [verse.strip() for _, verse in lines if len(verse.strip()) > 5]
        return cls(tuple(entry for entry in entries if entry.isascii()), tuple(verses))

    def part(self, *, held_out: bool) -> "Books":
        """The last twentieth, or all before it."""
        n, m = int(len(self.entries) * TRAINED_SHARE), int(len(self.verses) * TRAINED_SHARE)
        if held_out:
            return Books(self.entries[n:], self.verses[m:])
        return Books(self.entries[:n], self.verses[:m])


class Corpus:
    """An endless source of documents; the seed decides all of them."""

    def __init__(self, seed: int, books: Books, *, held_out: bool = False) -> None:
        self.rng = Random(seed)
        self.held_out = held_out
        self.books = books.part(held_out=held_out)

    def task(self, name: str) -> Task:
        """A random question for the tool, or for a random tool if the name is `tool`."""
        return TASKS[self.rng.choice(TASK_MIX) if name == "tool" else name](self.rng)

    def tool_turns(self, task: Task, *, think: bool) -> list[Segment]:
        """Question, call, result, answer."""
        open_turn, before_call = (THINK, task.thought + END_THINK) if think else (END_THINK, "")
        before_answer = "The tool has answered." + END_THINK if think else ""
        answer = self.rng.choice(task.answers)
        return [
            Segment(USER + task.question + ASSISTANT + open_turn, False),
            Segment(before_call + call_markup(task.tool, task.arguments) + EOS, True),
            Segment(USER + result_markup(task.result) + ASSISTANT + open_turn, False),
            Segment(before_answer + answer + EOS, True),
        ]

    def turn(self, kind: str | None = None, *, think: bool | None = None) -> list[Segment]:
        """One exchange of a given or random kind, in thinking mode a quarter of the time."""
        kind = kind or self.rng.choices(KINDS, KIND_WEIGHTS)[0]
        if think is None:
            think = self.rng.random() < 0.25
        if kind == "tool" or kind in TASKS:
            return self.tool_turns(self.task(kind), think=think)
        question, answer, thought = getattr(self, f"_{kind}")()
        opening = USER + question + ASSISTANT + (THINK if think else END_THINK)
        return [Segment(opening, False), Segment((thought + END_THINK if think else "") + answer + EOS, True)]

    def _fact(self) -> tuple[str, str, str]:
        subject, answer = self.rng.choice(FACTS)
        question = self.rng.choice(HELD_OUT_QUESTIONS if self.held_out else FACT_QUESTIONS).format(subject)
        return question, answer, f"The question is about {subject}."

    def _chat(self) -> tuple[str, str, str]:
        questions, answers = self.rng.choice(SMALL_TALK)
        return self.rng.choice(questions), self.rng.choice(answers), "A short polite answer."

    def _echo(self) -> tuple[str, str, str]:
        rng, words = self.rng, list[str]()
        for _ in range(rng.randint(3, 9)):
            choices = [
                person(rng).split()[0].lower(),
                str(rng.randint(1, 999)),
                person(rng).split()[0].lower(),
            ]
            words.append(rng.choice(choices))
        if rng.random() < 0.5:
            question = rng.choice(["Repeat: ", "Say again: ", "Copy this: "]) + " ".join(words)
            answer = " ".join(words)
        else:
            question = "Make a list of " + ", ".join(words) + "."
            answer = "\n".join("- " + word for word in words)
        return question, answer, "I will copy the words."

    def _count(self) -> tuple[str, str, str]:
        first, step, length = (
            self.rng.randint(1, 99),
            self.rng.choice([1, 1, 2, 5, 10]),
            self.rng.randint(5, 9),
        )
        numbers = [first + step * i for i in range(length)]
        question = f"Count from {numbers[0]} to {numbers[-1]}" + (
            f" in steps of {step}." if step > 1 else "."
        )
        return question, ", ".join(map(str, numbers)) + ".", "I will count."

    def _devil(self) -> tuple[str, str, str]:
        entry = self.rng.choice(self.books.entries)
        word = entry.split(",")[0].strip().lower()
        phrasings = ["Define the word {}.", "What does the Devil's Dictionary say about {}?"]
        return self.rng.choice(phrasings).format(word), entry.split("\n")[0], "This is in the dictionary."

    def dialogue(
        self, turns: int | None = None, *, header: bool = False, kind: str | None = None
    ) -> list[Segment]:
        """One to three exchanges, with the tools header in front if wanted."""
        rng, opening = self.rng, BOS
        if header:
            some = rng.sample(list(TOOLS), rng.randint(3, 5)) if rng.random() < 0.5 else list(TOOLS)
            opening += tools_header(rng, some)
        think = rng.random() < 0.25
        segments = [Segment(opening, False)]
        for _ in range(turns or rng.choice([1, 2, 3])):
            segments += self.turn(kind, think=think)
        return segments

    def prose(self) -> list[Segment]:
        """A few neighbouring entries or verses."""
        rng = self.rng
        if rng.random() < 0.5:
            i = rng.randrange(len(self.books.entries))
            text = "\n\n".join(self.books.entries[i : i + rng.randint(1, 3)])
        else:
            i = rng.randrange(len(self.books.verses))
            text = "\n".join(self.books.verses[i : i + rng.randint(2, 8)])
        return [Segment(BOS, False), Segment(text, True), Segment(EOS, True)]

    def document(self, header_share: float = 0.0) -> list[Segment]:
        """Prose or a dialogue; `header_share` of the dialogues start with the tools header."""
        if self.rng.random() < PROSE_SHARE:
            return self.prose()
        return self.dialogue(header=self.rng.random() < header_share)
