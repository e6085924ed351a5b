"""What every section of the configuration has in common: unknown keys and contradictions are faults, all at once."""

from collections.abc import Iterator
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

Label = bool | int | str
"""A class or a category, in the type its column has."""


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
    def _faults_between(cls, data: dict[str, Any]) -> Iterator[tuple[str | tuple[str, ...], str]]:  # noqa: ARG003
        """(key or path of keys, fault) where keys contradict each other. The data is as written, not checked yet."""
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
                path = (key,) if isinstance(key, str) else key
                faults.append(InitErrorDetails(type=fault(message), loc=path, input=data.get(path[0])))
        if faults or checked is None:
            raise ValidationError.from_exception_data(cls.__name__, faults)
        return checked
