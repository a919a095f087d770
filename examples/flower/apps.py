"""A Flower federation on handwritten digits: what every client runs, and what the server runs.

The two apps are ordinary Flower apps: `train` and `evaluate` are answered with weights and means, as usual. Added
is one question, `query.score`: the client scores its calibration rows with the shared model, keeps the scores, and
answers that it has done so. No score is in any message.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from numpy.typing import NDArray

from conformesh import scores
from conformesh.files.table_writers import write_scores
from conformesh.lab.datasets.partition import partition

CLIENTS, CLASSES, PIXELS = 8, 10, 64
ROUNDS, EPOCHS, RATE = 5, 5, 0.3  # of the federation; passes over a client's own rows in each; of gradient descent
SCORE = scores.LAC()  # 1 - the probability of the label

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Rows:
    """What one client holds: images to train with, to calibrate with and to test on."""

    train: tuple[Floats, NDArray[np.int64]]
    calibration: tuple[Floats, NDArray[np.int64]]
    test: tuple[Floats, NDArray[np.int64]]


@cache
def rows_of(client: int) -> Rows:
    """Return a client's own rows. Classes are spread unevenly, so that clients differ; two rows in ten train."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    home = partition(labels, CLIENTS, "dirichlet", rng=0, concentration=1.0)
    own = np.random.default_rng([0, client]).permutation(np.flatnonzero(home == client))
    first, second = len(own) // 5, len(own) * 3 // 5
    parts = own[:first], own[first:second], own[second:]
    return Rows(*((images[part] / 16.0, labels[part].astype(np.int64)) for part in parts))


def probabilities(weights: Floats, images: Floats) -> Floats:
    """Return what the model says of images: softmax regression, weights of shape (pixels + 1, classes)."""
    logits = images @ weights[:-1] + weights[-1]
    likely = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(likely / likely.sum(axis=1, keepdims=True))


def trained(weights: Floats, images: Floats, labels: NDArray[np.int64]) -> Floats:
    """Return the weights after some steps of gradient descent on a client's own rows."""
    weights, wanted = weights.copy(), np.eye(CLASSES)[labels]
    for _ in range(EPOCHS):
        wrong = (probabilities(weights, images) - wanted) / len(images)
        weights[:-1] -= RATE * images.T @ wrong
        weights[-1] -= RATE * wrong.sum(axis=0)
    return weights


def weights_in(message: Message) -> Floats:
    """Return the shared model that a message from the server brings."""
    [weights] = message.content["arrays"].to_numpy_ndarrays()
    return np.asarray(weights)


def as_record(weights: Floats) -> ArrayRecord:
    """Return weights as Flower sends them."""
    return ArrayRecord([weights])


# --- what every client runs -------------------------------------------------------------------------------------------

client_app = ClientApp()


def _own(context: Context) -> Rows:
    return rows_of(int(context.node_config["partition-id"]))


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Train on the client's own rows; weights and a count go back, as in every federation."""
    images, labels = _own(context).train
    weights = trained(weights_in(message), images, labels)
    content = RecordDict({"arrays": as_record(weights), "metrics": MetricRecord({"num-examples": len(labels)})})
    return Message(content, reply_to=message)


@client_app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Say how often the shared model is right on the client's training rows: calibration rows stay untouched."""
    images, labels = _own(context).train
    right = float((probabilities(weights_in(message), images).argmax(axis=1) == labels).mean())
    metrics = MetricRecord({"accuracy": right, "num-examples": len(labels)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


@client_app.query("score")
def score(message: Message, context: Context) -> Message:
    """Score the client's calibration rows with the shared model, and keep the scores: only `ready` is said.

    They stay in the context of this client and, where it is a device of a mesh, in the file that its own node reads.
    """
    images, labels = _own(context).calibration
    own = SCORE(probabilities(weights_in(message), images), labels)
    context.state["scores"] = ArrayRecord([own])
    if folder := context.node_config.get("folder"):
        path = Path(str(folder))
        write_scores(path / "scores.csv", [path.name] * len(own), own, mode=0o600)
    return Message(RecordDict({"done": ConfigRecord({"ready": True})}), reply_to=message)


def scores_kept(context: Context) -> Floats:
    """Return the scores that a client has kept; for the client's own use."""
    [own] = context.state["scores"].to_numpy_ndarrays()
    return np.asarray(own)


# --- what the server runs ---------------------------------------------------------------------------------------------

server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Average the clients' weights for some rounds, then ask every client to score its rows with the last model."""
    strategy = FedAvg(min_available_nodes=CLIENTS)
    start = as_record(np.zeros((PIXELS + 1, CLASSES)))
    result = strategy.start(grid, start, num_rounds=ROUNDS)
    context.state["model"] = result.arrays
    ask = RecordDict({"arrays": result.arrays})
    asked = [Message(ask, dst_node_id=node, message_type="query.score") for node in grid.get_node_ids()]
    replies = [*grid.send_and_receive(asked)]
    failed = [reply.metadata.src_node_id for reply in replies if reply.has_error()]
    if failed or len(replies) < len(asked):
        raise RuntimeError(
            f"{len(asked)} clients were asked to score their rows; {failed or 'some'} did not: ask again"
        )
    context.state["accuracy"] = result.evaluate_metrics_clientapp[ROUNDS]
