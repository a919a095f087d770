# # Streams that drift: electricity
#
# Every half hour somebody forecasts how much electricity New South Wales will need. Weekdays,
# heat waves and new markets come and go, so that a threshold which was right in May is wrong in
# January. In this tutorial twenty-four devices, one for each hour of the day, keep **prediction
# intervals** that follow the world, and each can say at any moment how far off its misses can be.

# ## From a file to a table
#
# The data are [ELEC2](https://www.openml.org/d/151): prices and demand, each scaled to between 0
# and 1, every half hour from May 1996 to December 1998. Put `elec2.csv.gz` into a folder and name
# it in the environment variable `CONFORMESH_DATA`. Without it the tutorial makes a stand-in with
# the same columns, and says so: numbers differ then, and the story does not.

import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import polars as pl


def stand_in(days=944):
    """A table like ELEC2's: two peaks a day, quiet weekends, and weather that gets wilder."""
    rng = np.random.default_rng(3)
    day, period = np.divmod(np.arange(48 * days), 48)
    hour = period / 2
    peaks = np.exp(-(((hour - 9) / 3) ** 2)) + 0.7 * np.exp(-(((hour - 18.5) / 2.5) ** 2))
    weather = 0.5 * rng.normal(size=(days, 1)) + rng.normal(size=(days, 48))  # common, and own
    for d in range(1, days):
        weather[d] += 0.7 * weather[d - 1]  # a hot day follows a hot day
    wild = 0.012 * (1 + 2 * peaks) * (1 + 0.6 * (day > 500))
    demand = 0.3 + 0.25 * peaks - 0.05 * (day % 7 > 4) + wild * weather.ravel()
    demand = np.clip(demand, 0, 1)
    price = np.clip(0.02 + 0.1 * demand**2 + 0.01 * rng.normal(size=len(day)), 0, 1)
    columns = {"date": day / days, "day": day % 7 + 1, "period": period / 47, "nswprice": price}
    columns |= {"nswdemand": demand, "vicprice": price, "vicdemand": demand, "transfer": demand}
    return pl.DataFrame(columns | {"class": np.where(np.diff(price, prepend=0) > 0, "UP", "DOWN")})


file = Path(os.environ.get("CONFORMESH_DATA", "")) / "elec2.csv.gz"
table = pl.read_csv(file) if file.exists() else stand_in()
print("ELEC2" if file.exists() else "a stand-in for ELEC2", f"with {len(table):,} half hours")
table.select("day", "period", "nswprice", "nswdemand").head(3)

# ## A forecast, and how far it is off
#
# The forecast is as plain as can be: what was needed at the same time yesterday. Any other would
# do; what follows sees nothing of it but the *score* of each half hour, here the absolute error.
# The twenty-four devices have two half hours a day each.

demand = table["nswdemand"].to_numpy().reshape(-1, 24, 2)  # days, hours, half hours
by_hour = demand.transpose(1, 0, 2).reshape(24, -1)  # one row for each device
scores = np.abs(by_hour[:, 2:] - by_hour[:, :-2])
print(f"{scores.shape[0]} devices with {scores.shape[1]:,} steps each")
for h in (3, 9, 18):
    print(f"in hour {h:2} the forecast is off by {scores[h].mean():.3f} on average")

# ## A threshold that stands still
#
# First the way of all other tutorials: the devices agree on one threshold from the scores of the
# first twenty weeks. The certificate is about data like those.

from conformesh import Network, calibrate

ring = Network.cycle(24)  # each hour hears the one before and the one after
first = 2 * 7 * 20
still = calibrate([*scores[:, :first]], ring, alpha=0.1)
print(still.certificate)
covered = scores <= still.threshold
later = covered[:, first:].mean(axis=1)
print(f"later {later.mean():.3f} are covered, of hour {later.argmin()} only {later.min():.3f}")

# Nothing is wrong with the certificate: later scores are not like the first, and one threshold
# for all hours was never a guarantee for each of them.

# ## Thresholds that follow
#
# `online` predicts every half hour with the device's threshold of the moment, then hears the
# truth, then talks to the two neighbours on the ring. It begins with nothing: no calibration at
# all. `largest` is what is known of the scores beforehand; demand lies between 0 and 1.

from conformesh.online import online

found = online(scores, ring, alpha=0.1, largest=1.0)
worst = found.ids[int(np.argmax(found.rates))]
print("all hours:", found.account())
print(f"hour {worst}, which missed most:", found.account(worst))
print("the same after 1,000 steps:", found.account(worst, after=1000))

# An account is no estimate. It says how many were missed so far, and how far from 0.1 that share
# can be *whatever the scores are*, even if somebody chose them to do harm. The bound shrinks as
# labels come.

# ## Is the network of any use?
#
# The same without it: every hour tracks a threshold of its own.

alone = online(scores, ring, alpha=0.1, learner="tracker", coupling="alone", largest=1.0)
for name, one in (("together", found), ("alone", alone)):
    rates = 1 - one.rates
    width = 2 * np.maximum(one.thresholds, 0).mean()
    start = (one.misses[:, :20] == 0).mean()
    print(f"{name:9} covered {rates.min():.3f} to {rates.max():.3f}, width {width:.3f}", end=", ")
    print(f"first 20 steps {start:.2f}")

# Once they are warm, both do well. The difference is the start: alone every hour has to find its
# threshold by missing, together they find it once.

window = 120  # two months
steps = np.arange(1, scores.shape[1] + 1)


def rolling(hits):
    return np.convolve(hits, np.ones(window) / window, "valid")


fig, (above, below) = plt.subplots(
    2,
    1,
    figsize=(7.5, 5.4),
    sharex=True,
    num="Coverage of the last two months, and thresholds of three hours",
    layout="constrained",
)
grey, hard = "0.6", later.argmin()
above.plot(steps[window - 1 :], rolling(covered.mean(axis=0)), color=grey, label="standing still")
above.plot(
    steps[window - 1 :], rolling(covered[hard]), color=grey, ls=":", label=f"the same, hour {hard}"
)
above.plot(steps, alone.rolling_coverage(window), color="C1", lw=1, label="alone")
above.plot(steps, found.rolling_coverage(window), color="C0", label="together")
above.axhline(0.9, color="k", lw=0.8, ls="--")
above.set(ylabel="coverage of the\nlast two months", ylim=(0.45, 1.0))
above.legend(frameon=False, ncols=4, loc="lower right")
shown = {3: "C2", 9: "C3", 18: "C4"}  # from step 30 on: thresholds begin large
for h, colour in shown.items():
    below.plot(steps[30:], found.thresholds[h, 30:], color=colour, lw=0.8, label=f"hour {h}")
below.axhline(still.threshold, color=grey, label="standing still")
top = 1.25 * found.thresholds[[*shown], 30:].max()
below.set(xlabel="step, two a day", ylabel="threshold", ylim=(0, top))
below.legend(frameon=False, ncols=4, loc="upper right")

# ## Has the world changed?
#
# Coverage near 0.9 does not tell: the thresholds have followed. A *drift alarm* looks at the
# scores. It bets that they are not exchangeable, and is raised when a fair game would hardly
# have made it so rich: where nothing changes, with a chance of at most 5 % for each device, ever.
# That hot days come in a row is a change to it, too.

from conformesh.online import Alarm

alarm = Alarm(level=0.05, alpha=0.1)
chance = np.random.default_rng(0).random(scores.T.shape)  # breaks ties between scores
raised = alarm.follow(alarm.begin(24), scores.T, chance).raised_at
print(f"{np.count_nonzero(raised)} of 24 hours have seen a change")
for row in np.flatnonzero(raised)[:3]:
    print(f"hour {row}: at step {raised[row]}, on day {raised[row] // 2}")

# ## Long streams
#
# The command line does all of this with a file of its own: `conformesh online stream.csv`. With
# `--checkpoint FILE` a long run may be stopped, and the same command goes on to the same numbers.

found.save("elec2-online.parquet")
print(pl.read_parquet("elec2-online.parquet").head(3))

# ## Where to go next
#
# - What is proved, how learners compare with published ones, and when alone is as good:
#   [Online](../online.md).
# - The world changes once and you know to what: [After a shift](../shift.md).
# - The first steps with certificates: [First sets](first-sets.py).
