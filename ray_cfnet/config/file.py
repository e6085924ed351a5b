"""From a YAML file and `--set` overrides to a checked `Config`, or one error that lists every fault."""

import difflib
from datetime import date
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ray_cfnet.config import Config
from ray_cfnet.config.features import CategoricalFeature, ContinuousFeature
from ray_cfnet.errors import ConfigError

_FEATURE_KINDS: dict[str, type[BaseModel]] = {
    "continuous": ContinuousFeature,
    "categorical": CategoricalFeature,
}

_Loc = tuple[int | str, ...]


class _UniqueKeyLoader(yaml.SafeLoader):
    """PyYAML keeps the last of two equal keys in silence; a configuration must not."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[Any, int] = {}
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(problem="a key must be a plain word", problem_mark=key_node.start_mark)
            line = key_node.start_mark.line + 1
            if key_node.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"key {key_node.value!r} is written twice (lines {seen[key_node.value]} and {line})",
                    problem_mark=key_node.start_mark,
                )
            seen[key_node.value] = line
        return super().construct_mapping(node, deep)


def load_config(path: str | Path, overrides: list[str] | None = None) -> Config:
    """Reads and checks a configuration. Raises ConfigError with every fault found.

    `overrides` are `a.b=c` strings; the value is read as YAML and wins over the file.
    """
    source = str(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(source, ["no such file; pass --config FILE (examples are in conf/)"]) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(source, [f"cannot be read: {error}"]) from None
    try:
        loader = _UniqueKeyLoader(text)
        node = loader.get_single_node()
        data = loader.construct_document(node) if node is not None else {}
    except (yaml.YAMLError, ValueError) as error:  # ValueError: something like a date that is none
        raise ConfigError(source, [f"not valid YAML: {_yaml_problem(error)}"]) from None
    if not isinstance(data, dict):
        raise ConfigError(source, ["must be a mapping with the sections table, split, model, ..."])
    overridden = _override(source, data, overrides or [])
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        raise ConfigError(source, _fault_lines(error.errors(), data, node, overridden)) from None


def _yaml_problem(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    return f"line {mark.line + 1}: {problem}" if mark else problem


def _override(source: str, data: dict[str, Any], overrides: list[str]) -> list[_Loc]:
    """Writes the overrides into the file's data and returns the paths they changed."""
    faults: list[str] = []
    changed: list[_Loc] = []
    for override in overrides:
        name, equals, value = override.partition("=")
        keys = name.strip().split(".")
        if not equals or not all(keys):
            faults.append(f"--set {override}: write it as --set section.key=value")
            continue
        section = data
        for key in keys[:-1]:
            if section.get(key) is None:
                section[key] = {}
            section = section[key]
            if not isinstance(section, dict):
                faults.append(f"--set {override}: {key} is not a section")
                break
        else:
            try:
                section[keys[-1]] = yaml.safe_load(value)
                changed.append(tuple(keys))
            except (yaml.YAMLError, ValueError) as error:
                faults.append(f"--set {override}: {_yaml_problem(error)}")
    if faults:
        raise ConfigError(source, faults)
    return changed


def _fault_lines(
    faults: list[ErrorDetails], data: dict[str, Any], node: yaml.Node | None, overridden: list[_Loc]
) -> list[str]:
    """`table.features.age.bounds: lower 90 > upper 17 (line 7)`, one for each place at fault."""
    places: dict[_Loc, list[ErrorDetails]] = {}
    for fault in faults:
        places.setdefault(_written_path(fault, data), []).append(fault)
    lines = []
    for loc, here in places.items():
        # A value that fits none of several types is one fault: it may be this or that.
        said = " or ".join(dict.fromkeys(_message(fault, loc, data) for fault in here))
        value = here[0].get("input")
        if here[0]["type"] not in _SELF_EXPLAINING and isinstance(value, str | int | float | bool | date | None):
            said += f", got {value!r}"
        line = _line_of(loc, node)
        if any(loc[: len(path)] == path or path[: len(loc)] == loc for path in overridden):
            said += " (from --set)"
        elif line:
            said += f" (line {line})"
        lines.append(f"{'.'.join(map(str, loc)) or 'the file'}: {said}")
    return lines


_SELF_EXPLAINING = ("fault", "extra_forbidden", "missing", "union_tag_not_found", "union_tag_invalid")


def _written_path(fault: ErrorDetails, data: Any) -> _Loc:
    """The path as the reader wrote it: pydantic also puts the tried types of a union into its own."""
    path: list[int | str] = []
    for part in fault["loc"]:
        in_list = isinstance(data, list) and isinstance(part, int) and part < len(data)
        if in_list or (isinstance(data, dict) and part in data):
            data = data[part]
        elif not (fault["type"] == "missing" and part == fault["loc"][-1]):
            continue
        path.append(part)
    return tuple(path)


def _message(fault: ErrorDetails, loc: _Loc, data: dict[str, Any]) -> str:
    kind, value = fault["type"], fault.get("input")
    if kind == "extra_forbidden":
        return "unknown key" + _nearest(str(loc[-1]), _known_keys(loc[:-1], data))
    if kind == "missing":
        return "missing, and there is no default"
    if kind == "union_tag_not_found":
        return "kind is missing; write kind: continuous or kind: categorical"
    if kind == "union_tag_invalid":
        given = str(value.get("kind")) if isinstance(value, dict) else str(value)
        return f"unknown kind {given!r}" + _nearest(given, list(_FEATURE_KINDS))
    return fault["msg"][:1].lower() + fault["msg"][1:]


def _nearest(word: str, known: list[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else f"; known here: {', '.join(known)}"


def _known_keys(loc: _Loc, data: dict[str, Any]) -> list[str]:
    """The keys that may stand at a place of the file."""
    if loc[:2] == ("table", "features"):
        return list(_FEATURE_KINDS[data["table"]["features"][loc[2]]["kind"]].model_fields)
    model: type[BaseModel] = Config
    parts = iter(loc)
    for part in parts:
        annotation = model.model_fields[str(part)].annotation
        model = next(c for c in (annotation, *get_args(annotation)) if isinstance(c, type) and issubclass(c, BaseModel))
        if get_origin(annotation) is dict:
            next(parts)  # a name of the reader's own
    return [field.alias or name for name, field in model.model_fields.items()]


def _line_of(loc: _Loc, node: yaml.Node | None) -> int | None:
    """The line of the longest part of a path that the file has."""
    line = None
    for part in loc:
        if isinstance(node, yaml.MappingNode):
            found = [(key, value) for key, value in node.value if key.value == str(part)]
            if not found:
                break
            line, node = found[0][0].start_mark.line + 1, found[0][1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 1
        else:
            break
    return line
