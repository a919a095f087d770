"""Small traces for tests of the page, each with what one of them is about."""

from __future__ import annotations

import numpy as np

from conformesh import Network, calibrate
from conformesh.online import online
from conformesh.view.online import OnlineRecorder
from conformesh.view.recording import Recorder
from conformesh.view.trace import Column, Flow, SentBits, Step, Trace, TracedRun, TraceHeading

SURE = 0.8968012322637599  # a threshold with all its digits


def calibrated(*jobs: tuple[Network, str]) -> Trace:
    """Return what a recorder saw of some calibrations, all with the same scores on each network."""
    recorder = Recorder()
    for network, method in jobs:
        rng = np.random.default_rng(7)
        scores = [rng.random(20) for _ in range(network.devices)]
        recorder.finish(calibrate(scores, network, 0.1, method, observer=recorder))
    return recorder.trace()


def searched() -> Trace:
    """Twenty devices that find a threshold: open at first, then between two ends, then certain."""
    heading = TraceHeading.of(
        "e-dcp on torus 5x4", Network.torus(5, 4), rank=901, scores=1000, facts=[("alpha", "0.1")]
    )
    every = len(heading.devices)
    brackets = [
        ("-inf", "inf", None, None),
        (0.5, 1.25, None, None),
        (0.8675, 0.9067, 871, 905),
        (SURE, SURE, 901, 901),
    ]
    steps = [Step(at=0, devices={"phase": Column(["calibrating"] * every)})]
    for place, bracket in enumerate(brackets[:-1]):
        heard = {"heard": Column([3 * place + 2] * every)}
        steps.append(Step(at=10 * place + 1, devices=heard, said=SentBits([64], [place, 19]), bracket=bracket))
    fields = {"phase": "certified", "threshold": SURE, "kind": "counted", "about": "everybody, by the swap rank"}
    end = {name: Column([value] * every) for name, value in fields.items()}
    steps.append(Step(at=40, devices=end, bracket=brackets[-1]))
    return Trace.of([TracedRun(heading, steps, [("threshold", "0.896801"), ("guarantee", "counted")])])


def watched() -> Trace:
    """A mesh over some seconds, in which nearly everything goes wrong that can."""
    heading = TraceHeading.of("six pumps", Network.chain(6), unit="seconds", rank=54, scores=60)
    heading.devices = [f"pump-{number}" for number in range(6)]
    steps = [
        Step(at=0.0, devices={"health": Column(["healthy"] * 6), "phase": Column(["starting"] * 6)}),
        Step(at=0.5, devices={"phase": Column(["calibrating"] * 6), "threshold": Column(["inf"] * 6)}),
        Step(at=1.0, flow=Flow([0, 3], [100, 900]), lost=[5], devices={"heard": Column([1, 2, 3, 4, 5, 6])}),
        Step(
            at=2.5,
            devices={
                "phase": Column(["certified"] * 5, [0, 1, 2, 3, 4]),
                "threshold": Column([0.75] * 5, [0, 1, 2, 3, 4]),
            },
        ),
        Step(at=3.0, devices={"health": Column(["silent"], [1])}, log=[(1, "error", "does not answer")]),
        Step(
            at=3.5,
            devices={"byzantine": Column(["says two things"], [2])},
            log=[(2, "warning", "counts as a Byzantine device")],
        ),
        Step(
            at=4.0,
            devices={"phase": Column(["failed"], [3]), "problem": Column(["no scores"], [3])},
            log=[(-1, "info", "over")],
        ),
    ]
    return Trace.of([TracedRun(heading, steps)])


def learnt(devices: int = 6, steps: int = 900) -> Trace:
    """Devices that learn online; after two thirds the scores of all but the last one double, and some say so."""
    network = Network.cycle(devices)
    scores = np.abs(np.random.default_rng(5).normal(size=(devices, steps)))
    scores[:-1, 2 * steps // 3 :] *= 2
    recorder = OnlineRecorder(network, window=100)
    recorder.alarm(2, 2 * steps // 3 + 30, "at its label 630")
    found = online(scores, network, observer=recorder)
    recorder.finish([("misses", str(found.account()))])
    return recorder.trace()


NAMES = [
    '<img src=x onerror="hacked=1">',
    "x" * 300,
    "żółw 設備 \u202eabc",
    "inf",
    "</script><script>hacked=1</script>",
    "",
]


def hostile() -> Trace:
    """Names and words that would be markup, were they not text, and thresholds of every kind."""
    markup = "<img src=x onerror=hacked=1>"
    heading = TraceHeading(
        name=f"<b onmouseover='hacked=1'>{markup}</b>",
        devices=NAMES,
        edges=[(row, row + 1) for row in range(5)],
        places=[(row % 3, row // 3) for row in range(6)],
        facts=[(markup, "</script><script>hacked=1</script>")],
    )
    thresholds = ["inf", "-inf", None, 0.5, 1e-300, 1e300]
    words = {"phase": [markup] * 6, "about": [markup] * 6, "problem": [markup] + [None] * 5, "threshold": thresholds}
    steps = [
        Step(at=0, devices={"phase": Column(["calibrating"] * 6)}, log=[(0, markup, markup)]),
        Step(at=1, devices={name: Column(values) for name, values in words.items()}, said=SentBits([8]), lost=[1]),
    ]
    return Trace.of([TracedRun(heading, steps, [(markup, markup)])])


def alone() -> Trace:
    """One device without neighbours."""
    heading = TraceHeading(name="one device", devices=["alone"], edges=[], places=[(3.0, 4.0)])
    step = Step(at=0, devices={"phase": Column(["certified"]), "threshold": Column(["inf"])})
    return Trace.of([TracedRun(heading, [step], [])])


def nothing() -> Trace:
    """Two devices of which nothing is known."""
    return Trace.of(
        [TracedRun(TraceHeading(name="nothing", devices=["a", "b"], edges=[(0, 1)], places=[(0, 0), (1, 0)]))]
    )


def many(devices: int, steps: int) -> Trace:
    """A torus on which every threshold changes in every step."""
    network = Network.torus(devices // 50, 50)
    rng = np.random.default_rng(3)
    taken = [Step(at=0, devices={"phase": Column(["calibrating"] * devices)})]
    for at in range(1, steps):
        values = np.round(0.9 + rng.normal(size=devices) / at, 4).tolist()
        taken.append(Step(at=at, devices={"threshold": Column(values)}, said=SentBits([64])))
    return Trace.of([TracedRun(TraceHeading.of(f"{devices} devices", network), taken, [])])
