# # From MAPIE to a mesh
#
# You calibrate with MAPIE today, on rows in one place. Tomorrow the rows are in eight clinics and
# must stay there. This tutorial goes there in small steps, and looks at each step what has
# changed. It is less than one would think.

# ## Today: everything in one place
#
# A forest reads digits that were written by hand on forms. It has learned from few of them; 400
# others calibrate it.

import matplotlib.pyplot as plt
import numpy as np
from mapie.classification import SplitConformalClassifier
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier

X, y = load_digits(return_X_y=True)
order = np.random.default_rng(3).permutation(len(X))
train, held, new = order[:100], order[100:500], order[500:]
model = RandomForestClassifier(50, random_state=0).fit(X[train], y[train])

mapie = SplitConformalClassifier(model, confidence_level=0.9, conformity_score="lac", prefit=True)
mapie.conformalize(X[held], y[held])
_, theirs = mapie.predict_set(X[new])
theirs = theirs[:, :, 0]
print(f"MAPIE: {theirs.sum(axis=1).mean():.2f} labels in a set")

# ## The same with one device
#
# `MeshClassifier` takes the same model and the same words. With one device there is nobody to
# talk to, and the sets are MAPIE's, row by row.

from conformesh.sklearn import MeshClassifier

one = MeshClassifier(model, confidence_level=0.9, nonconformity="lac")
one.calibrate(X[held], y[held], devices=np.zeros(len(held), dtype=int))
print("equal sets:", np.array_equal(one.predict_set(X[new]), theirs))

# ## Tomorrow: eight clinics
#
# The only thing to add is whose row is whose. Here rows are spread unevenly: the first clinic has
# many, the last has few.

rng = np.random.default_rng(0)
clinic = rng.choice(8, size=len(held), p=np.array([30, 20, 15, 10, 10, 7, 5, 3]) / 100)
mesh = MeshClassifier(model, confidence_level=0.9, nonconformity="lac")
mesh.calibrate(X[held], y[held], devices=clinic, network="cycle")
print("rows:", np.bincount(clinic))
print(mesh.result_.certificate)

# How much did it cost that no row has moved? One place asks for rank ⌈(n + 1)(1 − α)⌉ among the
# scores, the mesh for ⌈(1 − α)n⌉ + 1: the same, or one more. And the clinics may differ from each
# other as they like, where one place takes all rows for alike.

found, before = (
    mesh.result_.certificate.required_rank,
    one.result_.certificate.required_rank,
)
print(f"rank {before} of {len(held)} in one place, rank {found} on the mesh")
ours = mesh.predict_set(X[new])
print(f"rows whose sets have changed: {(ours != theirs).any(axis=1).mean():.0%}")

# ## What each clinic could do alone
#
# Calibrating alone needs no agreement, but few rows give uneven coverage: some clinics are lucky
# with the draw of their rows, and others pay for theirs with large sets.

alone = MeshClassifier(model, confidence_level=0.9, nonconformity="lac", method="local")
alone.calibrate(X[held], y[held], devices=clinic, network="cycle")

fig, ax = plt.subplots(
    figsize=(6.5, 3),
    num="Mean set size: alone, each clinic; together; in one place",
    layout="constrained",
)
own = [alone.predict_set(X[new], devices=np.full(len(new), k)).sum(axis=1).mean() for k in range(8)]
ax.bar(range(8), own, color="0.75", label="alone")
ax.axhline(ours.sum(axis=1).mean(), color="C0", label="on the mesh")
ax.axhline(theirs.sum(axis=1).mean(), color="C3", ls="--", label="MAPIE, in one place")
ax.set(xlabel="clinic", ylabel="labels in a set", ylim=(0, 2.7))
ax.legend(frameon=False, loc="upper center", ncols=3)

# ## Names side by side
#
# | MAPIE | here |
# | --- | --- |
# | `SplitConformalClassifier(model, prefit=True)` | `MeshClassifier(model)` |
# | `confidence_level=0.9` | the same, or `alpha=0.1` |
# | `conformity_score="lac"` | `nonconformity="lac"` |
# | `conformalize(X, y)` | `calibrate(X, y, devices=whose, network=who_talks_to_whom)` |
# | `predict_set(X)`: labels and sets, a table for each level | `predict(X)`; `predict_set(X)` |

# ## Where to go next
#
# - More names, also of crepes, TorchCP and Flower: [Coming from …](../coming-from.md).
# - You have calibrated objects already: `conformesh scores import` [takes the scores out of
#   them](../scores.md#from-mapie-torchcp-and-crepes).
# - Processes in place of a simulation: [A real mesh](real-mesh.py).
