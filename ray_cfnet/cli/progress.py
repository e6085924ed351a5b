"""How far a run is, for people: a bar in a terminal, a line now and then in a log."""

import threading
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_LINE_EVERY_S = 30.0


class ProgressDisplay:
    """A bar in a terminal, a line now and then in a log."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bar: Progress | None = None
        self.task: Any = None
        self.what = ""
        self.started = self.last_line = 0.0
        self.first_done = self.first_rows = 0
        self.line = ""
        self.closed: threading.Event | None = None

    def expect_units(self) -> None:
        """Units are about to be done. In a log, a line comes also while a large one is at work."""
        self.close()
        self.what, self.line, self.last_line = "", "at work, nothing to tell yet", time.monotonic()
        if not self.console.is_terminal:
            self.closed = threading.Event()
            threading.Thread(target=self._repeat, args=(self.closed,), daemon=True).start()

    def _repeat(self, closed: threading.Event) -> None:
        while not closed.wait(max(self.last_line + _LINE_EVERY_S - time.monotonic(), 0)):
            if time.monotonic() - self.last_line >= _LINE_EVERY_S:
                self._print(self.line)

    def _print(self, line: str) -> None:
        self.line, self.last_line = line, time.monotonic()
        self.console.print(line, highlight=False, soft_wrap=True)

    def epoch(self, metrics: dict[str, Any], num_epochs: int) -> None:
        """One finished epoch of training, or the news that a run goes on."""
        if "resumed_after" in metrics:
            self.say(f"going on after epoch {metrics['resumed_after']} of an earlier run")
            return
        said = (
            f"L1 {metrics['loss_pred']:.3f}  L2 {metrics['loss_valid']:.3f}  L3 {metrics['loss_prox']:.3f}  "
            f"accuracy {metrics['accuracy']:.3f}  validity {metrics['validity']:.3f}  "
            f"{metrics['rows_per_s']:,.0f} rows/s"
        )
        self._show("training", metrics["epoch"], num_epochs, said)

    def unit(self, done: int, total: int, rows: int, rejected: int) -> None:
        """One finished unit of an explain run; `rows` and `rejected` are totals so far."""
        now = time.monotonic()
        if self.what != "explaining":
            self.first_rows = rows
        seconds = now - self.started
        speed = f"  {(rows - self.first_rows) / seconds:,.0f} rows/s" if rows > self.first_rows and seconds else ""
        self._show("explaining", done, total, f"{rows:,} rows  {rejected:,} rejected{speed}")
        if done == total:
            self._stop_repeating()

    def say(self, text: str) -> None:
        """What comes next."""
        self._stop_bar()
        self.console.print(text, highlight=False, soft_wrap=True)

    def _show(self, what: str, done: int, total: int, said: str) -> None:
        now = time.monotonic()
        if what != self.what:  # the clock starts with the first report: what came before was start-up
            self._stop_bar()
            self.what, self.started, self.first_done, self.last_line = what, now, done, 0.0
        if self.console.is_terminal:
            if self.bar is None:
                self.bar = Progress(
                    TextColumn("{task.description}", markup=False),
                    BarColumn(bar_width=20),
                    MofNCompleteColumn(),
                    TimeRemainingColumn(),
                    TextColumn("{task.fields[said]}", markup=False),
                    console=self.console,
                )
                self.task = self.bar.add_task(what, total=total, said="")
                self.bar.start()
            self.bar.update(self.task, completed=done, said=said)
        else:
            measured = done - self.first_done
            left = f"  {(now - self.started) / measured * (total - done):.0f} s left" if measured else ""
            self.line = f"{what} {done}/{total}  {said}{left}"
            if done == total or now - self.last_line >= _LINE_EVERY_S:
                self._print(self.line)

    def close(self) -> None:
        """Nothing more is shown until it is asked for."""
        self._stop_bar()
        self._stop_repeating()

    def _stop_repeating(self) -> None:
        if self.closed is not None:
            self.closed.set()
            self.closed = None

    def _stop_bar(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None
