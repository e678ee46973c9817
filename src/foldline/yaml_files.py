"""A YAML file as a pydantic model; every mistake in it is named with its line."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from foldline.errors import BadFile, BadSpec

Place = tuple[str | int, ...]


class Strict(BaseModel):
    """The base of models that are read from files: unknown fields are mistakes, and errors do not repeat secrets."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


Model = TypeVar("Model", bound=Strict)


def read_text(path: Path, what: str) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadFile(f"{what} {path} cannot be read: {getattr(error, 'strerror', None) or error}.") from error


def parsed(text: str, name: str, model: type[Model], what: str) -> Model:
    """`name`: of the file, in errors. `what`: what it is and should look like, if it is something else altogether."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        raise BadSpec(f"{name}{where}: not YAML: {getattr(error, 'problem', None) or error}.") from error
    if not isinstance(found, dict):
        raise BadSpec(f"{name}, line 1: {what}, not {type(found).__name__}.")
    if twice := repeated_key(root):
        raise BadSpec(f"{name}, line {twice[1]}: {twice[0]} is said twice; YAML would silently take the last.")
    try:
        return model.model_validate(found)
    except ValidationError as error:
        lines = []
        for problem in error.errors(include_url=False, include_input=False, include_context=False):
            place = problem["loc"]
            where = ".".join(str(p) for p in place) or "the whole"
            message = str(problem["msg"]).removeprefix("Value error, ").rstrip(".")
            if problem["type"] == "extra_forbidden":
                near = get_close_matches(str(place[-1]), fields_at(model, place[:-1]), 1)
                message = "there is no such field" + (f"; did you mean {near[0]}" if near else "")
            lines.append(f"{name}, line {line_of(root, place)}: {where}: {message}.")
        raise BadSpec("\n".join(lines)) from error


def fields_at(model: type[BaseModel], place: Place) -> list[str]:
    """The fields of the model that lies at `place` inside `model`."""
    for step in place:
        if isinstance(step, str) and step in model.model_fields:
            inner = model_in(model.model_fields[step].annotation)
            if inner is None:
                return []
            model = inner
    return list(model.model_fields)


def model_in(annotation: Any) -> type[BaseModel] | None:
    """The first model that an annotation speaks of: Part, Part | None, tuple[Part, ...]."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((m for a in get_args(annotation) if (m := model_in(a)) is not None), None)


def line_of(node: yaml.Node | None, place: Place) -> int:
    """The line of the deepest part of `place` that the file has."""
    line = node.start_mark.line + 1 if node is not None else 1
    for step in place:
        if isinstance(node, yaml.MappingNode):
            pair = next(((k, v) for k, v in node.value if k.value == str(step)), None)
            if pair is None:
                break
            line, node = pair[0].start_mark.line + 1, pair[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            node = node.value[step]
            line = node.start_mark.line + 1
        else:
            break
    return line


def repeated_key(node: yaml.Node | None) -> tuple[str, int] | None:
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if key.value in seen:
                return str(key.value), key.start_mark.line + 1
            seen.add(key.value)
            if found := repeated_key(value):
                return found
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            if found := repeated_key(item):
                return found
    return None
