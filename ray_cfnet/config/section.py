"""What all parts of the configuration share: frozen, no unknown keys, and every fault told at once."""

from collections.abc import Iterator
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

Label = bool | int | str
"""A class or a category, in the type its column has."""

Place = str | tuple[int | str, ...]
"""A key of a section, or a path below it."""

Fault = tuple[Place, str]
"""Where something is wrong, and what."""


def fault(message: str) -> PydanticCustomError:
    # The message goes in as context: braces in a user's value must not be read as a template.
    return PydanticCustomError("fault", "{message}", {"message": message})


def _raised_again(details: ErrorDetails) -> InitErrorDetails:
    kind = fault(details["ctx"]["message"]) if details["type"] == "fault" else details["type"]
    again = InitErrorDetails(type=kind, loc=details["loc"], input=details["input"])
    return {**again, "ctx": details["ctx"]} if "ctx" in details and kind == details["type"] else again


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @classmethod
    def _faults_between(cls, data: dict[str, Any]) -> Iterator[Fault]:  # noqa: ARG003
        """(key, fault) where keys contradict each other. The data is as written, nothing of it checked yet."""
        yield from ()

    @model_validator(mode="wrap")
    @classmethod
    def _every_fault(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Pydantic checks keys together only once each is right; here one fault must not hide another."""
        faults: list[InitErrorDetails] = []
        checked = None
        try:
            checked = handler(data)
        except ValidationError as error:
            faults += [_raised_again(details) for details in error.errors()]
        if isinstance(data, dict):
            for key, message in cls._faults_between(data):
                loc = (key,) if isinstance(key, str) else key
                faults.append(InitErrorDetails(type=fault(message), loc=loc, input=data.get(str(loc[0]))))
        if faults or checked is None:
            raise ValidationError.from_exception_data(cls.__name__, faults)
        return checked
