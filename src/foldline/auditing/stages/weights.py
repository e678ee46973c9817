"""Training samples out of the weights, for whoever holds them."""

from __future__ import annotations

from typing import Any

from foldline.auditing.findings import cost, method
from foldline.auditing.session import Estimate, Outcome, Session, Stage
from foldline.auditing.stages.reconstruct import told

TITLE = "Training samples from the weights"
EXPLAINS = ("The rows of the first layer are combinations of training samples. Whoever holds the weights needs no "
            "queries: the same separation of sources works on the layer itself.")


def estimate(session: Session) -> Estimate:
    return Estimate.exactly(0, 30.0, "needs the weights, asks nothing")


def attack(session: Session) -> Any:
    import foldline as fl
    known = session.main.known
    return fl.reconstruct(session.main.module, rng=session.rng("weights"), image_shape=known.image_shape,
                          mean=known.mean, box=known.box)


def tell(session: Session, result: Any) -> Outcome:
    found, figures = told(session, session.main, result, "training-data-weights", "weights",
                          cost=cost(session, "no rows: the weights alone"), source="the weights", off="the weights")
    return Outcome(method=method(STAGE, EXPLAINS, result, numbers={"samples returned": len(result.samples),
                                                                   **found.numbers},
                                 figures=[f.id for f in figures]), findings=[found], figures=figures)


STAGE = Stage("weights", TITLE, "main", estimate, attack, tell)
