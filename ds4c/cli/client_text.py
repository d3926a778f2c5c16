"""What `ds4c client` prints for people: answers of the server, as data, in one line each."""

from typing import Any

from ds4c.cli.common import format_bytes


def summary(document: dict[str, Any]) -> str:
    """One line about a finished generation."""
    finished, started = document["finished"], document["started"]
    usage, timing = finished["usage"], finished["timing"]
    seconds = timing.get("decode", 0.0)
    rate = f", {usage['output_tokens'] / seconds:.1f} tokens/s" if seconds > 0 else ""
    return (
        f"session {started['session_id']} at {finished['end_position']}: {finished['reason']}, "
        f"{usage['input_tokens']} in ({usage['cached_input_tokens']} cached), "
        f"{usage['output_tokens']} out{rate}; {rewind_line(started['rewind'])}"
    )


def rewind_line(report: dict[str, Any]) -> str:
    """One line about what was done to the state."""
    reason = report["rebuild_reason"]
    why = "" if reason == "unspecified" else f" ({reason})"
    return (
        f"rewind {report['kind']}{why} from {report['from_position']} to {report['to_position']}, "
        f"{report['replayed_tokens']} tokens replayed{_using(report)}"
    )


def _using(answer: dict[str, Any]) -> str:
    """The snapshot of a report or plan, for the end of its line."""
    return f", snapshot {answer['snapshot_id']}" if answer["snapshot_id"] else ""


def describe_session(session: dict[str, Any]) -> str:
    """A session in one line."""
    state = "valid" if session["state_valid"] else "to be rebuilt"
    return (
        f"{session['session_id']}  position {session['position']} of {session['capacity']}, "
        f"high water {session['high_water']}, epoch {session['epoch']}, state {state}"
    )


def describe_rewind(answer: dict[str, Any]) -> str:
    """A session and what was done to it, in one line."""
    return f"{describe_session(answer['session'])}; {rewind_line(answer['rewind'])}"


def describe_plan(answer: dict[str, Any]) -> str:
    """The price of a rewind in one line."""
    reason = answer["rebuild_reason"]
    why = "" if reason == "unspecified" else f" ({reason})"
    return (
        f"to {answer['to_position']}: {answer['kind']}{why}, {answer['replay_tokens']} tokens from "
        f"{answer['base_position']}, about {answer.get('estimated_time', 0.0):.3f} s{_using(answer)}"
    )


def describe_snapshot(snapshot: dict[str, Any]) -> str:
    """A snapshot in one line."""
    pinned = " pinned" if snapshot["pinned"] else ""
    label = f"  {snapshot['label']}" if snapshot["label"] else ""
    place = "device" if snapshot["on_device"] else "host"
    return (
        f"{snapshot['snapshot_id']}  position {snapshot['position']}, {snapshot['origin']}{pinned}, "
        f"{format_bytes(snapshot['bytes'])} on the {place}{label}"
    )
