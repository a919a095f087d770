# # A real mesh
#
# Everything so far was simulated. Now five devices are five processes, each with a folder of its
# own, a certificate, and a file of scores that it never sends. They talk over encrypted links
# along a ring, and no server exists. All of them run on this machine, so that you can try it; in
# earnest each folder goes to a machine of its own. It needs `pip install 'conformesh[mesh]'`.

# ## Scores
#
# As always we start with scores in a file, a row for each: whose it is, and the score.

import csv
import json
import shlex
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

rng = np.random.default_rng(5)
held = {f"pump-{k}": rng.beta(2, 5 - 0.6 * k, size=30 + 10 * k) for k in range(5)}
with open("scores.csv", "w", newline="") as file:
    csv.writer(file).writerows(
        [("device", "score"), *((name, score) for name, own in held.items() for score in own)]
    )

# ## Folders
#
# `conformesh mesh init` makes a folder for each device: what was agreed on, its certificate and
# key, its scores. In a shell you would type these commands; a notebook calls them.

from conformesh.cli.demo_mesh import find_free_ports


def conformesh(line):
    """Run a command as a shell would."""
    command = [sys.executable, "-m", "conformesh", *shlex.split(line)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


port = find_free_ports(5)
print(conformesh(f"mesh init mesh --scores scores.csv --network cycle --base-port {port}"))
print(*sorted(path.name for path in Path("mesh/pump-0").iterdir()), sep="\n")

# `check` looks at every folder before anything starts: files, certificates, scores, and whether
# all agree on what is to be done.

checked = conformesh("mesh check mesh --offline")
print("\n".join(checked.splitlines()[:12]), "\n...")

# ## Up
#
# One process for each device. They greet each other, make sure that they agree on everything,
# count, and stop.

print(conformesh("mesh up mesh"))

# ## The same as simulated
#
# Not nearly: to the last bit.

from conformesh import Result, calibrate

simulated = calibrate(held, "cycle", alpha=0.1)
for name in held:
    kept = json.loads(Path("mesh", name, "result.json").read_text())
    own = Result.from_dict(kept["calibration"], name)
    print(name, "has the same threshold:", own.threshold == simulated.threshold)
print(own.certificate)

# ## What was where

fig, ax = plt.subplots(
    figsize=(6, 2.6),
    num="The scores of each device, and the threshold they agreed on",
    layout="constrained",
)
for place, name in enumerate(held):
    ax.plot(held[name], np.full(len(held[name]), place), "|", color="0.5", ms=9)
ax.axvline(simulated.threshold, color="C0", label="threshold")
ax.set_yticks(range(5), held)
ax.set_xlabel("score")
ax.legend(frameon=False)

# The rows of this picture were never together in one process but this one, which made them.

# ## Where to go next
#
# - Crashes, lost devices, who gets in, what it does not protect against: [A real
#   mesh](../mesh.md).
# - On machines of their own: `hosts.txt`, copying folders, systemd and containers: [In five
#   commands](../mesh.md#in-five-commands).
# - Before building one: [Planning](../planning.md) says what to expect.
