# # Regression with CQR
#
# Eight gauges along a river predict tomorrow's level. Floods come fast and droughts slowly, so
# errors are lopsided, and larger in some seasons than in others. *Conformalised quantile
# regression* (CQR) starts from two predicted quantiles and moves them until the band holds the
# truth often enough. Here the gauges agree on how far, each from its own measurements.

# ## Data and two quantiles
#
# The data are made, so that we know what is true: noise has a long tail upwards, and grows with
# the season.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.ensemble import GradientBoostingRegressor

rng = np.random.default_rng(7)


def measured(rows):
    """Season between 0 and 1, and the level of the river."""
    season = rng.random(rows)
    level = 2 + np.sin(2 * np.pi * season) + (0.2 + season) * rng.exponential(0.6, rows)
    return season[:, None], level


X, y = measured(300)  # what the models are trained with
quantile = {
    q: GradientBoostingRegressor(
        loss="quantile", alpha=q, n_estimators=60, max_depth=2, min_samples_leaf=15, random_state=0
    )
    for q in (0.1, 0.9)
}
for one in quantile.values():
    one.fit(X, y)


def band(X):
    """The two predicted quantiles of every row."""
    return np.column_stack([quantile[0.1].predict(X), quantile[0.9].predict(X)])


# ## Each gauge scores its own rows
#
# The score of a row is how far its level lies outside the band; inside, it is negative.

from conformesh import Network, calibrate, scores

cqr, network = scores.CQR(), Network.chain(8)  # a river: every gauge hears the next one
gauges = [measured(60) for _ in range(8)]
held = [cqr(band(X), y) for X, y in gauges]
even = calibrate(held, network, alpha=0.1, score=cqr)
print(even.certificate)
print(f"the band is moved by {even.threshold:.2f} on both sides")

# ## A threshold for each side
#
# One threshold gives as much room below as above. `symmetric=False` finds one for each side in
# the same run: each side is missed at most half as often as both together may be.

two = [cqr.sides(band(X), y) for X, y in gauges]
sides = calibrate(two, network, alpha=0.1, symmetric=False, score=cqr)
print(f"moved by {sides['lower'].threshold:.2f} below and {sides['upper'].threshold:.2f} above")
sides

# ## What it looks like

X, y = measured(2000)
grid = np.linspace(0, 1, 200)[:, None]
fig, axes = plt.subplots(
    1,
    2,
    figsize=(8, 3.4),
    sharey=True,
    layout="constrained",
    num="Intervals with one threshold and with two",
)
for ax, found, title in zip(
    axes, (even, sides), ("one threshold", "a threshold for each side"), strict=True
):
    low, high = found.predict(band(grid)).T
    ax.plot(X[:400], y[:400], ".", color="0.7", ms=3)
    ax.plot(grid, band(grid), color="C0", lw=0.8)
    ax.fill_between(grid[:, 0], low, high, color="C0", alpha=0.2)
    ax.set(title=title, xlabel="season")
axes[0].set_ylabel("level")

# Thin lines are the predicted quantiles, the shade is what was certified. And in numbers, on new
# rows:

for name, found in (("even", even), ("sides", sides)):
    intervals = found.predict(band(X))
    below, above = np.mean(y < intervals[:, 0]), np.mean(y > intervals[:, 1])
    width = np.diff(intervals).mean()
    print(f"{name:5} missed below {below:.1%}, above {above:.1%}; mean width {width:.1f}")

# With one threshold most misses are floods, which is what the gauges are for. With two,
# each side keeps a guarantee of its own. `lower_share=0.9` would give nearly all misses to the
# droughts.

# ## The same around a scikit-learn model
#
# `MeshRegressor(model, nonconformity="cqr", symmetric=False)` trains the quantiles, too, and does
# all of the above: see [With scikit-learn](../sklearn.md#regression).

# ## Where to go next
#
# - Other scores for regression: [Scores](../scores.md).
# - Coverage near every season, not on average over all of them: [Local coverage](../local.md).
# - A loss that is not "missed or not": [Risk control](risk-control.py).
