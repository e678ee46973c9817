"""Target strings: one line of text that names a model, opened as a Source.

torch:package.module:factory          a factory (or class, or module object); the function that makes the network
weights:model.safetensors             written by fl.save; weights:FILE@package.module:factory where the file
                                      has no architecture
onnx:model.onnx                       values and labels
sklearn:model.skops                   values and labels
py:module:function                    any batched function of (n, d); py:path/to/file.py:function too
https://host/predict, http:spec.yaml  an HTTP API (endpoint.py)
demo:digits                           a small ReLU network trained here on scikit-learn's digits; demo:logistic
a plain path                          taken by its ending
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from foldline.errors import BadSpec, FoldlineError, TargetError
from foldline.oracles.local import LocalSource
from foldline.oracles.protocols import Box, Kind, Source

FORMS = ("torch:package.module:factory, weights:model.safetensors, onnx:model.onnx, sklearn:model.skops, "
         "py:module:function, https://host/predict, http:spec.yaml, demo:digits, or a path that ends in "
         ".safetensors, .onnx, .skops or .yaml")
ENDINGS = {".safetensors": "weights", ".onnx": "onnx", ".skops": "sklearn", ".yaml": "http", ".yml": "http"}
SCHEMES = ("torch", "weights", "onnx", "sklearn", "py", "http", "https", "demo")


def open_target(text: str, kind: Kind, *, output: int = 0, threshold: float = 0.0, dim: int | None = None,
                input_shape: tuple[int, ...] | None = None, box: Box | None = None) -> Source:
    scheme, rest = parse_target(text)
    if scheme in ("http", "https"):
        from foldline.oracles.endpoint import open_endpoint
        opened: Source = open_endpoint(text if text.startswith(("http:", "https:")) else f"http:{text}", kind,
                                       output=output, threshold=threshold, dim=dim, input_shape=input_shape, box=box)
        return opened
    if scheme == "onnx":
        from foldline.oracles.artefacts import OnnxSource
        return OnnxSource(Path(rest), kind, threshold=threshold, box=box)
    if scheme == "sklearn":
        from foldline.oracles.artefacts import SklearnSource
        return SklearnSource(Path(rest), kind, threshold=threshold, box=box)
    target = named_object(rest, text) if scheme == "py" else target_module(text)
    if not callable(target):
        raise BadSpec(f"{text} names a {type(target).__name__}, not something that can be called on a batch.")
    return LocalSource(target, kind, output=output, threshold=threshold, dim=dim, input_shape=input_shape, box=box)


def target_module(text: str) -> nn.Module | None:
    """The torch module behind a target whose weights are in reach (torch:, weights:, demo:, py: of a module)."""
    scheme, rest = parse_target(text)
    if scheme == "demo":
        from foldline.oracles.demo import demo_network
        return demo_network(rest)
    if scheme == "weights":
        from foldline.networks.files import load
        path, _, factory = rest.partition("@")
        return load(path, made_module(factory, text) if factory else None)
    if scheme == "torch":
        return made_module(rest, text)
    if scheme == "py":
        found = named_object(rest, text)
        return found if isinstance(found, nn.Module) else None
    return None


def parse_target(text: str) -> tuple[str, str]:
    """(scheme, rest), or one sentence with the forms there are."""
    scheme, colon, rest = text.partition(":")
    if colon and scheme in SCHEMES:
        if not rest.strip("/"):
            raise BadSpec(f"The target {text!r} names nothing after {scheme}:. A target is {FORMS}.")
        return scheme, rest
    by_ending = ENDINGS.get(Path(text.partition("@")[0]).suffix.lower())
    if by_ending and (not colon or Path(text).exists()):
        return by_ending, text
    close = closest(scheme) if colon else None
    hint = f" Did you mean {close}:{rest}?" if close else ""
    raise BadSpec(f"{text!r} is not a target.{hint} A target is {FORMS}.")


def closest(scheme: str) -> str | None:
    import difflib
    found = difflib.get_close_matches(scheme.lower(), SCHEMES, n=1)
    return found[0] if found else None


def made_module(name: str, text: str) -> nn.Module:
    """What a factory made; its random numbers come from a fixed seed, so that every run meets the same network."""
    found = named_object(name, text)
    if isinstance(found, nn.Module):
        return found
    if not callable(found):
        raise BadSpec(f"{text} names a {type(found).__name__}; a factory of a torch module was expected.")
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)                    # the factory is the user's and draws from torch's own generator
            made = found()
    except FoldlineError:
        raise
    except Exception as error:
        raise TargetError(f"The factory of {text} failed with {type(error).__name__}: {error}.") from error
    if not isinstance(made, nn.Module):
        raise BadSpec(f"The factory of {text} returned a {type(made).__name__}, not a torch module.")
    return made


def named_object(name: str, text: str) -> Any:
    """module:attribute, where the module may be a file and the attribute may be dotted."""
    module_name, colon, attribute = name.rpartition(":")
    if not colon or not module_name or not attribute:
        raise BadSpec(f"{text!r} does not say which object: write module:name, as in {text.partition(':')[0]}:"
                      f"package.module:name.")
    try:
        with current_folder_importable():
            module = module_from_file(Path(module_name)) if module_name.endswith(".py") \
                else importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise BadSpec(f"{text} cannot be opened: {error}.") from error
    except FoldlineError:
        raise
    except Exception as error:
        raise TargetError(f"Importing {module_name} for {text} failed with {type(error).__name__}: {error}.") from error
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            names = sorted(n for n in vars(module) if not n.startswith("_"))[:12]
            raise BadSpec(f"{module_name} has no {attribute!r}; it has {', '.join(names) or 'no public names'}.")
        found = getattr(found, part)
    return found


def module_from_file(path: Path) -> Any:
    if not path.is_file():
        raise BadSpec(f"There is no file {path}.")
    name = f"foldline_target_{path.stem}_{abs(hash(path.resolve()))}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise BadSpec(f"{path} cannot be imported as Python.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextlib.contextmanager
def current_folder_importable() -> Iterator[None]:
    """The console script does not have the current folder on its path; a user's module usually lies there."""
    here = str(Path.cwd())
    if here in sys.path or "" in sys.path:
        yield
        return
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)
