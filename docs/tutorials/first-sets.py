# # First sets
#
# Six post offices sort letters. Each has scanned digits that were checked by hand, and none may
# send them away. They share one model, which errs now and then. In this tutorial they agree,
# without pooling a single image, on **prediction sets** that contain the true digit for at least 95
# of 100 new images, and on a **certificate** that says why.

# ## A model that errs
#
# The images are the handwritten digits of scikit-learn. The model is trained on 80 of them, so
# that there is something to be unsure about. conformesh trains nothing: it starts with a model of
# yours.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

images, digits = load_digits(return_X_y=True)
images = images / 16
order = np.random.default_rng(0).permutation(len(images))
train, held, new = order[:80], order[80:900], order[900:]
model = LogisticRegression(max_iter=1000).fit(images[train], digits[train])
print(f"{model.score(images[new], digits[new]):.0%} of new images are named correctly")

# ## Whose images are they?
#
# Every office sees its own mix of digits: postcodes differ from place to place.

offices = np.array(["Ashby", "Bray", "Corfe", "Diss", "Ely", "Frome"])
rng = np.random.default_rng(1)
mix = rng.dirichlet(np.ones(6), size=10)  # for each digit, the offices' shares of it
office = np.array([rng.choice(offices, p=mix[digit]) for digit in digits])
for name in offices:
    own = digits[held][office[held] == name]
    print(f"{name:6} {len(own):4} images, most often the digit {np.bincount(own).argmax()}")

# ## Three lines
#
# `MeshClassifier` wraps the model. `calibrate` is given the images that were checked by hand and
# whose they are; the offices talk along a ring, each with two neighbours only.

from conformesh.sklearn import MeshClassifier

mesh = MeshClassifier(model, alpha=0.05)
mesh.calibrate(images[held], digits[held], devices=office[held], network="cycle")
sets = mesh.predict_set(images[new])

# What did they find? One threshold, the same in every office. The certificate is the reason to
# believe in it: of all scores together a certain number must lie at or below the threshold, and
# the offices have *counted* that so many do.

mesh.result_

# A *score* says how badly the model did on an image, here one minus the probability of the true
# digit. What travelled were counts and a few scores near the threshold: from each office about as
# many bits as one of its images has.

# ## Sets to look at
#
# Where the model is sure, a set has one digit. Where it is not, the set says which digits it
# could be.

sizes = sets.sum(axis=1)
shown = [np.flatnonzero(sizes == size)[i] for size in (1, 2, 3) for i in (0, 1)]
fig, axes = plt.subplots(
    1,
    6,
    figsize=(7.5, 1.9),
    num="Six new images, each with its prediction set",
    layout="constrained",
)
for ax, row in zip(axes, shown, strict=True):
    ax.imshow(images[new][row].reshape(8, 8), cmap="gray_r")
    names = ", ".join(map(str, model.classes_[sets[row]]))
    ax.set_title(f"{{{names}}}\ntruth: {digits[new][row]}", fontsize=10)
    ax.set_axis_off()

# ## Does it hold?
#
# The images in `new` were never used. The truth should be in at least 95 % of their sets, up to
# chance.

report = mesh.evaluate(images[new], digits[new], devices=office[new])
print(f"{report.coverage.rate:.3f} of the sets cover the true digit")
print(f"between {report.coverage.low:.2f} and {report.coverage.high:.2f}, by a 95 % interval")

# The guarantee is about images of all offices together, in proportion to what they hold. Single
# offices may be a little above or below:

report.plot(by="device")

# ## Where to go next
#
# - Do you need another guarantee: for every office, for every digit, after a shift?
#   [Which guarantee do I need?](../which-guarantee.md)
# - Numbers in place of labels: [Regression with CQR](cqr.py).
# - You know MAPIE: [From MAPIE to a mesh](from-mapie.py).
# - All that the estimators can do: [With scikit-learn](../sklearn.md).
