# # Your own graph and method
#
# Villages along two valleys have radios that reach the next village, and a weather station each.
# Who can talk to whom is given, and it is no textbook graph. In this tutorial the villages
# calibrate on their own graph, we look at what the graph costs, and then we write a method of our
# own, of twenty lines, that gets a certificate like any other.

# ## The graph
#
# Any connected NetworkX graph will do.

import matplotlib.pyplot as plt
import networkx as nx
import numpy as np

valleys = [
    ["Mill", "Ford", "Bridge", "Church", "Top"],
    ["Weir", "Ford", "Chapel", "Moor"],
    ["Mill", "Inn", "Weir"],
]
graph = nx.Graph()
for valley in valleys:
    nx.add_path(graph, valley)
print(f"{graph.number_of_nodes()} villages, {graph.number_of_edges()} links")

places = nx.spring_layout(graph, seed=2)
fig, ax = plt.subplots(figsize=(6.5, 3), num="The villages and their links", layout="constrained")
nx.draw_networkx(
    graph, places, ax=ax, node_size=700, node_color="#9ecae1", edge_color="0.6", font_size=9
)
ax.set_axis_off()

# Every village has scores: how far its forecasts were off. The high ones have more trouble and
# fewer measurements.

rng = np.random.default_rng(4)
held = {}
for village in graph:
    high = village in ("Top", "Moor", "Church")
    held[village] = np.abs(rng.normal(scale=2.0 if high else 1.0, size=12 if high else 40))

# ## Calibrate on it

from conformesh import Network, calibrate

result = calibrate(held, graph, alpha=0.1)
result

# A dict by name and a graph with the same names cannot be mixed up. The villages counted
# together, over the links that there are.

result.plot(Network.from_networkx(graph))

# ## What if the radios were better?
#
# The threshold is the same on every graph, to the last bit; rounds and bits are not.

richer = nx.compose(graph, nx.Graph([("Top", "Moor"), ("Mill", "Chapel"), ("Inn", "Church")]))
for name, each in (
    ("as it is", graph),
    ("three more links", richer),
    ("everybody hears everybody", nx.complete_graph(graph.nodes)),
):
    found = calibrate(held, each, alpha=0.1, prefer="rounds")
    same = found.threshold == result.threshold
    print(f"{name:26} rounds: {found.cost.rounds}, same threshold: {same}")

# ## A method of our own
#
# A method is a *generator*: it asks a question about the neighbours and is handed the answer. It
# opens no socket and reads no clock, which is why it runs in the simulator, under MPI and on a
# real mesh without a change. Ours agrees on the largest score of all: crude, and as simple as a
# valid method can be.

from dataclasses import dataclass

from conformesh import METHODS
from conformesh.methods import Description, Method
from conformesh.protocols.block import Answers
from conformesh.protocols.consensus import agreed_maximum
from conformesh.results.certificate import Certificate


@dataclass(frozen=True)
class NoOptions:
    """The fields of this class would be keywords of `calibrate` and flags of the command line."""


def largest_score(site, samples, alphas, options):
    """Every village passes on the largest score it has heard of."""
    _, mine = samples.extremes()  # the largest score of each device
    agreed = yield from agreed_maximum(
        mine, site
    )  # questions and answers, for as many rounds as the diameter
    ranks = site.ranks()  # what the guarantee requires
    certificates = [
        [Certificate("counted", int(r), int(n)) for r in row]
        for n, row in zip(site.totals, ranks, strict=True)
    ]
    return Answers(np.repeat(agreed[:, :, None], len(alphas), axis=2), certificates)


METHODS["largest"] = Method(
    largest_score,
    NoOptions,
    Description(
        guarantee="counted",
        needs="neighbours",
        sends="1 number",
        paper="",
        summary="the largest score",
    ),
)
ours = calibrate(held, graph, alpha=0.1, method="largest")
print(ours.certificate)
print(ours.cost)

# The certificate is honest: all scores lie at or below the threshold, so that the rank is more
# than enough. The price is in the threshold.

fig, ax = plt.subplots(
    figsize=(6.5, 2.6), num="All scores with both thresholds", layout="constrained"
)
ax.hist(np.concatenate([*held.values()]), bins=40, color="0.8")
ax.axvline(result.threshold, color="C0", label="e-dcp")
ax.axvline(ours.threshold, color="C3", ls="--", label="largest")
ax.set(xlabel="score", ylabel="how many")
ax.legend(frameon=False)

# ## Where to go next
#
# - The same with options, a plan and tests, and skeletons for scores, topologies and engines:
#   [Adding something](../adding.md).
# - What each built-in method guarantees and sends: [Which method should I use?](../which-method.md)
# - What each method would cost on your network: [Planning](../planning.md).
