"""One family of errors. Each says what is wrong, where, and what to change.

Every error keeps its message in `args`, so it crosses process borders whole.
"""

import re


class RayCfnetError(Exception):
    """The parent of all errors a person is meant to read. `exit_code` is what the command line returns."""

    exit_code = 1


class ConfigError(RayCfnetError):
    """The configuration is wrong. `faults` lists every fault, one line each."""

    exit_code = 2

    def __init__(self, source: str, faults: list[str]) -> None:
        super().__init__(source, faults)
        self.source = source
        self.faults = faults

    def __str__(self) -> str:
        count = "1 fault" if len(self.faults) == 1 else f"{len(self.faults)} faults"
        return "\n".join([f"{self.source}: {count}", *(f"  {fault}" for fault in self.faults)])


class InputError(RayCfnetError):
    """The data is wrong or missing. `remedy` says what to change."""

    exit_code = 2

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem, remedy)
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.problem}\n  remedy: {self.remedy}"


class BundleError(InputError):
    """A model bundle is missing, damaged or does not fit the table."""


class JobError(RayCfnetError):
    """The job started and failed. What was finished stays finished."""


class StoppedError(JobError):
    """A signal ended the job before it was done. Nothing else of it is to be begun."""


def last_line(error: BaseException) -> str:
    """What an error says at its end. Ray puts a whole trace, with colours, into its messages."""
    lines = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip().splitlines()
    causes = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return (causes or lines or [type(error).__name__])[0].strip()
