"""Logs for machines: one JSON object a line on standard error, in place of the progress bar."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

log = logging.getLogger("ray_cfnet")
_OWN = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """time, level, logger, message, and whatever the caller passed as `extra`; not what Ray hides in each record."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **{name: given for name, given in vars(record).items() if name not in _OWN and name[0] != "_"},
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_as_json() -> None:
    """From here on ray-cfnet's log goes to standard error as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    log.handlers = [handler]
    log.setLevel(logging.INFO)
    log.propagate = False


def is_json() -> bool:
    return any(isinstance(handler.formatter, JsonFormatter) for handler in log.handlers)


class LoggedProgress:
    """Progress as log lines; units are logged where they are done (cluster/telemetry.py)."""

    def epoch(self, metrics: dict[str, Any], num_epochs: int) -> None:
        event = "training_resumed" if "resumed_after" in metrics else "epoch_done"
        log.info(event.replace("_", " "), extra={"event": event, "num_epochs": num_epochs, **metrics})

    def expect_units(self) -> None:
        pass

    def unit(self, *_: int) -> None:
        pass

    def say(self, text: str) -> None:
        log.info(text)

    def close(self) -> None:
        pass
