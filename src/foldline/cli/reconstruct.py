"""`foldline reconstruct TARGET`: training rows out of a network's weights, or out of what it answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foldline.cli.common import Budget, JsonOut, RunFolder, Seed, Target, emit, progress, say

if TYPE_CHECKING:
    from torch import nn

    from foldline.reconstruction.result import ReconstructionResult
    from foldline.span.result import SpanResult

HELP = """Recover training images from a trained network: from its weights where they
are in reach, else from gradients, values or labels that it answers.

DIR gets reconstruction.png (best first) and reconstruction.npz (samples, their
weights and evidence). With the owner's file every image is scored against the
training set and against as many unseen images.

\b
Examples:
  foldline train everyday --n 50 --out victim
  foldline reconstruct victim/victim.safetensors
  foldline reconstruct victim/victim.safetensors --reference victim/owner.npz
  foldline reconstruct victim/victim.safetensors --access gradients
  foldline reconstruct https://host --i-am-authorised "..." --image-shape 28x28
  foldline reconstruct victim/victim.safetensors --public digits.npy

\b
The published attack and its search for settings, for comparison:
  foldline reconstruct victim/victim.safetensors --method kkt --seconds 300
  foldline reconstruct victim/victim.safetensors --method kkt --search 20
"""
ACCESS = ("weights", "gradients", "smoothgrad", "values", "labels")
METHODS = ("unmix", "kkt", "atoms", "invert")
LEAKS_NOTHING = ("no_gap", "full_rank", "condensed")
MUCH = {"start_remains": "Hardly anything leaks", "faint": "Blurred images leak", "full_rank": "Single images may leak"}


def command(
    target: Target,
    access: Annotated[str | None, typer.Option("--access", help="weights, gradients, smoothgrad, values or labels; "
                                               "default: the most that the target gives.")] = None,
    method: Annotated[str, typer.Option("--method", help="unmix; from weights also kkt, atoms, invert.")] = "unmix",
    mean: Annotated[str | None, typer.Option("--mean", metavar="FILE|NUMBER", help="What is subtracted from pixels "
                                             "before they enter the network: a row (.npy) or a number.")] = None,
    box: Annotated[tuple[float, float], typer.Option("--box", help="Range of raw pixels.")] = (0.0, 1.0),
    no_box: Annotated[bool, typer.Option("--no-box", help="The range is not known: nothing is snapped to it.")] = False,
    image_shape: Annotated[str | None, typer.Option("--image-shape", metavar="HxW[xC]", help="28x28, 32x32x3, 3x32x32; "
                                                    "guessed where the width allows.")] = None,
    reference: Annotated[Path | None, typer.Option("--reference", metavar="FILE", help="owner.npz: score against the "
                                                   "training set. No attack reads it.")] = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the pictures and the npz "
                                      "go.")] = Path("reconstruction"),
    public: Annotated[str | None, typer.Option("--public", metavar="FILE|NAME", help="Other pictures of the kind: rows "
                                               "(.npy, .npz), a data set whose test images are used, what an earlier "
                                               "run kept (.safetensors), or strokes; default: pen strokes at 28x28, "
                                               "where rows look drawn; none: nothing.")] = None,
    output: Annotated[int, typer.Option("--output", min=0, help="Whose gradient is asked.")] = 0,
    samples: Annotated[int, typer.Option("--samples", min=1, help="SmoothGrad's draws.")] = 10,
    preset: Annotated[str | None, typer.Option("--preset", help="kkt: mnist-a, mnist-b, cifar10-a or "
                                               "cifar10-b.")] = None,
    search: Annotated[int | None, typer.Option("--search", min=1, metavar="N", help="kkt: N random settings first, "
                                               "resumable in DIR.")] = None,
    seconds: Annotated[float | None, typer.Option("--seconds", min=0.0, help="kkt, atoms: stop after this "
                                                  "long.")] = None,
    seed: Seed = 0,
    budget: Budget = None,
    run: RunFolder = None,
    json_out: JsonOut = None,
) -> None:
    from foldline.cli.reconstruct_known import known_of
    from foldline.cli.reconstruct_public import NOTHING, check_public, separator_of, with_public_mean
    from foldline.cli.reconstruct_show import judged, show_evidence, write
    from foldline.errors import BadInput

    for option, given, there in (("--access", access, (None, *ACCESS)), ("--method", method, METHODS)):
        if given not in there:
            raise BadInput(f"{option} is one of {', '.join(t for t in there if t)}, not {given!r}.")
    if search is not None and method != "kkt":
        raise BadInput("--search looks for settings of --method kkt.")
    if preset is not None and (method != "kkt" or search is not None):
        raise BadInput("--preset belongs to --method kkt, without --search.")
    if seconds is not None and method not in ("kkt", "atoms"):
        raise BadInput("--seconds belongs to --method kkt and atoms; unmixing stops by itself.")
    if not box[0] < box[1]:
        raise BadInput(f"--box needs its lower end first, not {box[0]:g} {box[1]:g}.")
    if out.exists() and not out.is_dir():
        raise BadInput(f"--out {out} is a file; it names a folder.")
    if reference is not None and not reference.is_file():
        raise BadInput(f"There is no owner file {reference}.")
    if public is not None and method != "unmix":
        raise BadInput("--public belongs to --method unmix.")
    known = known_of(target, mean, None if no_box else box, image_shape)
    module = module_of(target) if access in (None, "weights") or method != "unmix" else None
    if module is None and (access == "weights" or method != "unmix"):
        raise BadInput(f"The weights of {target} are not in reach: " + (f"--method {method} needs them." if method !=
                       "unmix" else "choose another --access."))
    if public is not None:
        check_public(public, module)
    out.mkdir(parents=True, exist_ok=True)
    taught: dict[str, Any] = {}
    if public == NOTHING:
        taught = {"public": False}
    elif public is not None:
        separator = separator_of(public, known, seed, out)
        known, taught = with_public_mean(known, separator), {"public": separator}
    span: SpanResult | None = None
    if module is not None:
        found = from_weights(module, method, known.options() | taught, seed, seconds, preset, search, out)
    else:
        span, found = from_answers(target, access, known.options() | taught, seed, budget, run, output, samples)
    quiet = json_out == "-"
    score = None
    if reference is not None:
        score = judged(found, reference, known, module, out, quiet=quiet)
    elif not quiet:
        show_evidence(found)
    write(found, known, out, pictures=reference is None or score is None)
    emit({**found.to_dict(), "score": None if score is None else score.to_dict()}, json_out)
    leave(found, span)


command.__doc__ = HELP


def module_of(target: str) -> nn.Module | None:
    """The torch module, or None where only answers can be had."""
    from foldline.oracles.targets import target_module
    return target_module(target)


def from_weights(module: nn.Module, method: str, known: dict[str, Any], seed: int, seconds: float | None,
                 preset: str | None, search: int | None, out: Path) -> ReconstructionResult:
    import foldline as fl
    rng = fl.generator(seed)
    with progress("reconstruct") as show:
        if method == "invert":
            return fl.invert(module, rng=rng, progress=show, **known)       # type: ignore[no-any-return]
        settings: dict[str, Any] = {}
        if method in ("kkt", "atoms") and seconds is not None:
            settings["seconds"] = seconds
        if method == "kkt":
            settings |= kkt_settings(module, known, seed, seconds, preset, search, out, show)
        return fl.reconstruct(module, method=method, rng=rng, progress=show, **known,   # type: ignore[no-any-return]
                              **settings)


def kkt_settings(module: nn.Module, known: dict[str, Any], seed: int, seconds: float | None, preset: str | None,
                 search: int | None, out: Path, show: Any) -> dict[str, Any]:
    from foldline.errors import FoldlineError
    from foldline.reconstruction.noise_edge import noise_edge
    from foldline.reconstruction.weights import first_layer
    # The paper takes twice as many candidates as training rows; the visible rank is what an attacker knows of n.
    settings: dict[str, Any] = {"m": max(2, 2 * noise_edge(first_layer(module)[0])[0].rank)}
    if preset is not None:
        settings["preset"] = preset
    if search is not None:
        import foldline as fl
        from foldline.reconstruction.search import search_kkt
        tried = search_kkt(module, trials=search, rng=fl.generator(seed), m=settings["m"], mean=known["mean"],
                           box=known["box"], seconds=seconds, storage=out / "search.sqlite", progress=show)
        if tried.best is None:
            raise FoldlineError(f"All {len(tried.trials)} trials diverged; take more: --search {2 * search}.")
        said = ", ".join(f"{k} {v:.3g}" for k, v in tried.best.settings.items())
        say(f"Best of {len(tried.trials)} settings by the stationarity residual ({tried.best.residual:.4g}): {said}.")
        settings |= tried.best.settings
    return settings


def from_answers(target: str, access: str | None, known: dict[str, Any], seed: int, budget: int | None,
                 run: Path | None, output: int, samples: int) -> tuple[SpanResult, ReconstructionResult]:
    import foldline as fl
    from foldline.randomness import Streams
    from foldline.reconstruction.black_box import where_to_look
    streams = Streams(fl.generator(seed))
    oracle = open_oracle(target, access, streams, budget, run, output, samples)
    with progress("reconstruct") as show:
        if oracle.kind == "labels":
            span = fl.recover_span_from_labels(oracle, rng=streams("span"), progress=show)
        else:
            # A guessed layout will not do: colours may come first, and a table may have as many columns.
            within = where_to_look(known["image_shape"]) if oracle.kind == "values" else None
            span = fl.recover_span(oracle, rng=streams("span"), within=within, progress=show)
        return span, fl.reconstruct_from_span(span, rng=streams("unmix"), progress=show, **known)


def open_oracle(target: str, access: str | None, streams: Any, budget: int | None, run: Path | None, output: int,
                samples: int) -> Any:
    """The oracle of `access`, or of the most telling kind that the target answers."""
    import foldline as fl
    from foldline.errors import BadInput, NotAuthorised

    def smoothgrad() -> Any:
        from foldline.oracles.explain import smoothgrad_oracle
        from foldline.oracles.local import kept
        asked: Any = target if (module := module_of(target)) is None else module
        oracle = smoothgrad_oracle(asked, output, samples=samples, rng=streams("smoothgrad"), budget=budget)
        return oracle.wrap(lambda s: kept(s, target, f"smoothgrad {samples} of output {output}", run))

    ways: dict[str, Callable[[], Any]] = {
        "gradients": lambda: fl.gradient_oracle(target, output, budget, run=run), "smoothgrad": smoothgrad,
        "values": lambda: fl.value_oracle(target, budget, run=run),
        "labels": lambda: fl.label_oracle(target, budget, run=run)}
    if access is not None:
        return ways[access]()
    for name in ("gradients", "values"):
        try:
            oracle = ways[name]()
        except NotAuthorised:
            raise
        except BadInput as error:
            say(f"No {name} from {target}: {error}", markup_safe=f"{target}: {error}")
        else:
            say(f"Asking {target} for {name}.", markup_safe=target)
            return oracle
    return ways["labels"]()


def leave(found: ReconstructionResult, span: SpanResult | None) -> None:
    """Exit code 0: done, also when the answer is that nothing leaks; 3: the budget ended it early."""
    from foldline.cli.common import finish
    from foldline.results import Status
    status = found.status
    if span is not None and span.status.code == "budget":
        finish(Status("budget", f"{span.status.message} {status.message}", status.notes))
    if status.code in LEAKS_NOTHING and len(found.samples) == 0:
        text = " ".join((status.message, *status.notes))
        say(f"[green]Nothing leaks this way[/] ({status.code}): {text}", markup_safe=text)
        return
    if status.code in MUCH:
        text = " ".join((status.message, *status.notes))
        much = MUCH[status.code]
        say(f"[yellow]{much} this way[/] ({status.code}): {text}", markup_safe=text)
        return
    leak = found.certificate
    if found.provenance.parameters.get("method", "unmix") == "unmix" and found.provenance.method != "invert" \
            and not leak.n_is_exact and leak.exact == 0:
        say("[yellow]No image is confirmed[/]: neither a gap in the spectrum nor the edge of the pixel box bears "
            "them out. These may be mixtures or prototypes.")
    finish(status)
