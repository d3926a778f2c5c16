"""`ds4c run` and `ds4c chat` with the bundled model."""

from __future__ import annotations

import io
import json
import re

import pytest
from artifacts import Build

from ds4c.cli.main import main

REWIND = "Rewind moves a session back to an earlier position without running the model again."


def test_run_streams_the_answer_alone_on_stdout(built: Build, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(built("demo").artifact), "-p", "What is rewind?"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(REWIND)
    assert out.endswith("\n")
    assert err.startswith("[eos; 8 tokens in")


def test_run_json_calls_a_tool(built: Build, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(built("demo").artifact), "-p", "What is 12 + 30?", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["finish_reason"] == "eos"
    assert ">12 + 30<" in document["text"]


def test_run_raw_stops_at_the_limit(built: Build, capsys: pytest.CaptureFixture[str]) -> None:
    call = ["run", str(built("demo").artifact), "-p", "In the", "--raw", "--max-tokens", "5", "--json"]
    assert main(call) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["finish_reason"], document["output_tokens"]) == ("length", 5)


def test_run_without_a_tokenizer(built: Build, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(built("tiny-8").artifact), "-p", "x"]) == 1
    assert "expected an artifact with tokenizer.json" in capsys.readouterr().err


def chat(built: Build, monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr(
        "sys.stdin", io.TextIOWrapper(io.BytesIO(("\n".join(lines) + "\n").encode()), "utf-8")
    )
    assert main(["chat", str(built("demo").artifact)]) == 0


def test_chat_undo_gives_the_same_answer_again(
    built: Build, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chat(built, monkeypatch, "What is a session?", "What is rewind?", "/undo", "What is rewind?", "/quit")
    out, err = capsys.readouterr()
    answers = out.splitlines()
    assert len(answers) == 3
    assert answers[1] == answers[2]
    assert answers[1].startswith(REWIND)
    assert "-> " in err


def test_chat_branches_do_not_disturb_each_other(
    built: Build, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ("Hello!", "/branch b", "What is gRPC?", "/branch main", "What is rewind?", "/branch", "/stats")
    chat(built, monkeypatch, *lines)
    out, err = capsys.readouterr()
    assert REWIND in out
    assert "*main, b" in err
    assert "branch main of 2" in err


def test_chat_goes_to_a_snapshot_and_forward_again(
    built: Build, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ("What is rewind?", "/snapshots", "/rewind s1", "/snapshots", "/rewind s2", "/stats", "/undo")
    chat(built, monkeypatch, *lines)
    err = capsys.readouterr().err
    (end,) = set(re.findall(r"s2  position (\d+), turn_end", err))
    assert f"s1  position 8, prompt_end\ns2  position {end}, turn_end  <- here" in err
    assert f"{end} -> 8, 0 tokens replayed" in err
    assert "s1  position 8, prompt_end  <- here" in err
    assert f"[snapshot: 8 -> {end}, 0 tokens replayed from snapshot s2, " in err
    assert f"branch main of 1, position {end}" in err
    assert f"{end} -> 0, 0 tokens replayed" in err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/rewind x", "expected a number of tokens"),
        ("/rewind s99", "or an id of /snapshots, got 's99'"),
        ("/rewind 9999", "rewind by 9999 tokens refused: expected a position in"),
        ("/undo", "expected a turn to take back"),
        ("/what", "expected one of /rewind"),
    ],
)
def test_chat_goes_on_after_a_bad_line(
    built: Build,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    line: str,
    message: str,
) -> None:
    chat(built, monkeypatch, line, "What is rewind?")
    out, err = capsys.readouterr()
    assert message in err
    assert out.startswith(REWIND)
