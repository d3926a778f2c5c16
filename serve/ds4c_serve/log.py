"""Log lines of the server: one per call and one per rewind, on stderr; never what was said in a session."""

import json
import logging
import sys
import time
from typing import Literal

from ds4c_runtime.reports import RebuildReason, RewindReport

LOGGER = logging.getLogger("ds4c_serve")
LogFormat = Literal["text", "json"]


class _JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, event and its facts."""

    def format(self, record: logging.LogRecord) -> str:
        """Write a record as one line."""
        line: dict[str, object] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + "Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class _TextFormatter(logging.Formatter):
    """`time level event key=value ...`, empty values left out."""

    def format(self, record: logging.LogRecord) -> str:
        """Write a record as one line, with a traceback below it if there is one."""
        facts: dict[str, object] = getattr(record, "facts", {})
        pairs = [f"{key}={value}" for key, value in facts.items() if value != ""]
        stamp = time.strftime("%H:%M:%S", time.localtime(record.created))
        line = " ".join([stamp, record.levelname.lower(), record.getMessage(), *pairs])
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class _StderrHandler(logging.Handler):
    """Writes to whatever `sys.stderr` is at the moment, one flushed line a record."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record."""
        print(self.format(record), file=sys.stderr, flush=True)


def configure(form: LogFormat) -> None:
    """Send the server's log to stderr in a format; called once by the command that serves."""
    handler = _StderrHandler()
    handler.setFormatter(_JsonFormatter() if form == "json" else _TextFormatter())
    LOGGER.handlers[:] = [handler]
    LOGGER.setLevel(logging.INFO)
    LOGGER.propagate = False


def log_event(event: str, **facts: object) -> None:
    """Log an event with facts that a program can read."""
    LOGGER.info(event, extra={"facts": facts})


def log_warning(event: str, **facts: object) -> None:
    """Log an event that somebody should look at."""
    LOGGER.warning(event, extra={"facts": facts})


def log_rewind(report: RewindReport, request_id: str, session_id: str) -> None:
    """Log a rewind, a fork, or a rebuild before a generation; a deferred one again when it is made good."""
    is_rebuilt = report.rebuild_reason is not RebuildReason.NOT_REBUILT
    facts = {
        "request_id": request_id,
        "session_id": session_id,
        "from": report.from_position,
        "to": report.to_position,
        "base": report.base_position,
        "kind": report.kind.value,
        "cause": report.cause.value,
        "reason": report.rebuild_reason.value if is_rebuilt else "",
        "replayed": report.replayed_tokens,
        "ms": round((report.restore_seconds + report.replay_seconds) * 1000, 1),
    }
    log_event("rewind", **facts)
