"""A test engine: every device its own block of one, driven in lockstep. Shows that one body serves them all."""

import numpy as np

from conformesh.protocols.messages import Each, Heard, Max, Min, Pool, Sum


def run_in_blocks(network, protocols):
    """Drive one generator per device until all end; return their results in row order."""
    k = network.devices
    answers = [None] * k
    while True:
        messages, results = [], []
        for protocol, answer in zip(protocols, answers, strict=True):
            try:
                messages.append(protocol.send(answer))
            except StopIteration as end:
                results.append(end.value)
        if results:
            assert len(results) == k, "devices must end in the same round"
            return results
        kinds = {type(m) for m in messages}
        assert len(kinds) == 1, f"devices ask different questions in one round: {kinds}"
        answers = [_answer(network, i, messages) for i in range(k)]


def _answer(network, i, messages):
    neighbours = [int(j) for j in network.neighbours(i)]
    message = messages[i]
    if isinstance(message, Sum):
        dtype = np.int64 if message.values.dtype.kind in "iu" else np.float64
        total = np.zeros_like(message.values, dtype=dtype)
        for at, j in enumerate(neighbours):
            x = messages[j].values.astype(dtype)
            total = total + (x if message.weights is None else message.weights[at] * x)
        return total
    if isinstance(message, Max | Min):
        best = np.maximum if isinstance(message, Max) else np.minimum
        out = message.values
        for j in neighbours:
            out = best(out, messages[j].values)
        return out
    if isinstance(message, Each):
        said = [j for j in neighbours if messages[j].speakers[0]]
        values = np.array([messages[j].values[0] for j in said], dtype=message.values.dtype)
        values = values.reshape(len(said), *message.values.shape[1:])
        return Heard(np.full(len(said), i), np.array(said, dtype=np.int64), values)
    assert isinstance(message, Pool)
    sizes = np.concatenate([np.diff(m.offsets) for m in messages])
    return Pool(np.concatenate([m.values for m in messages]), np.concatenate([[0], np.cumsum(sizes)]), message.oracle)
