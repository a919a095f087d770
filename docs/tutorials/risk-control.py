# # Risk control
#
# A meter shows three digits, and a camera at each of ten sites reads them. A set that holds two
# of the three is not worthless: it has missed a third. *Risk control* guarantees that sets miss, on
# average, at most so much, for any loss between 0 and 1 that never rises as sets grow. The sites
# agree on one number λ, by counting, as they agree on a threshold.

# ## Pictures with three digits
#
# The digits are scikit-learn's. A model trained on few of them gives every digit a probability
# for each place; a digit is seen in the picture if it is seen in one of the three places.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

images, digits = load_digits(return_X_y=True)
images = images / 16
rng = np.random.default_rng(0)
order = rng.permutation(len(images))
model = LogisticRegression(max_iter=1000).fit(images[order[:60]], digits[order[:60]])
rest = order[60:]
seen = model.predict_proba(images[rest])


def pictures(number):
    """Which rows are in each picture, how probable every digit is in it, and which are."""
    places = rng.integers(len(rest), size=(number, 3))
    probable = 1 - np.prod(1 - seen[places], axis=1)
    true = (digits[rest][places][:, :, None] == np.arange(10)).any(axis=1)
    return places, probable, true


places, _, _ = pictures(4)
fig, axes = plt.subplots(
    1, 4, figsize=(7.5, 1.2), num="Four pictures with three digits each", layout="constrained"
)
for ax, row in zip(axes, places, strict=True):
    ax.imshow(np.hstack(images[rest][row].reshape(3, 8, 8)), cmap="gray_r")
    ax.set_axis_off()

# ## What a set loses
#
# The loss of a picture is the part of its digits that its set misses. A digit is in the set if
# its probability is at least 1 − λ. Every site works out, for its own pictures, at which λ their
# losses fall.

from conformesh import Network, control
from conformesh.scores import losses

fnr = losses.FalseNegativeRate()
sites = [pictures(40)[1:] for _ in range(10)]
result = control(
    [fnr(probable, true) for probable, true in sites], Network.cycle(10), risk=0.1, loss=fnr
)
result

# ## The curve that nobody sees
#
# Every site knows how its own mean loss falls with λ. The curve of all of them is known to
# nobody; the sites found where it crosses the line, and nothing else of it.

lams = np.linspace(0, 1, 200)
curves = np.array(
    [[fnr(probable, true).at(lam).mean() for lam in lams] for probable, true in sites]
)
fig, ax = plt.subplots(
    figsize=(6.5, 3.2),
    num="Mean loss of each site, and of all, against lambda",
    layout="constrained",
)
ax.plot(lams, curves.T, color="0.8", lw=0.8)
ax.plot(lams, curves.mean(axis=0), color="C0", label="all sites")
ax.axhline(0.1, color="C3", lw=1, label="risk")
ax.axvline(result.threshold, color="C2", ls="--", lw=1, label="λ that was agreed on")
ax.set(xlabel="λ", ylabel="mean loss", xlim=(0, 1), ylim=(0, 1))
ax.legend(frameon=False)

# ## Does it hold?

_, probable, true = pictures(2000)
print(result.evaluate(probable, true))

# ## Another loss
#
# Not all digits are worth the same on a meter: who reads 9 as 1 is out by eight. Any loss that
# never rises with λ will do, as a table of its values. Here it is the largest digit that the set
# misses, in units of nine.

grid = np.linspace(0, 1, 101)
steps = []
for probable, true in sites:
    missed = true[:, :, None] & (1 - probable[:, :, None] > grid)  # (pictures, digits, lambdas)
    worst = (missed * np.arange(10)[None, :, None]).max(axis=1) / 9
    steps.append(losses.StepLosses.on_grid(grid, worst, bound=1))
dear = control(steps, Network.cycle(10), risk=0.1)
print(dear.certificate.kind, f"- λ rises from {result.threshold:.2f} to {dear.threshold:.2f}")

# ## Where to go next
#
# - All losses, files and the command line: [Risk control](../risk.md).
# - Why the mean loss must stay a little below the risk: [Guarantees](../guarantees.md).
# - Misses that are all or nothing: [First sets](first-sets.py).
