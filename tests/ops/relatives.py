"""The methods of the family as their papers define them, in a few lines each and no state."""
# values: v_0, ..., v (B, H, N, D) of the layers so far; kernel (B, H, N, N)

import math

import torch

from pidformer.control import Feedback


def xsa(kernel, values):
    """Exclusive self-attention (arXiv 2603.09078): y without its component along v."""
    v = values[-1]
    y = kernel @ v
    return y - (y * v).sum(-1, keepdim=True) / (v * v).sum(-1, keepdim=True) * v


def laplacian(kernel, values):
    """Laplacian heads (arXiv 2602.09297), (1 - A) v, with the sign left to the projection."""
    return -(values[-1] - kernel @ values[-1])


def resformer(kernel, values):
    """Value residual (arXiv 2410.17897): attention over the mean with the first layer's values."""
    return kernel @ (values[-1] + values[0]) / 2


def neutreno(kernel, values):
    """NeuTRENO (arXiv 2312.00751): the fidelity term alpha (v_0 - v)."""
    return kernel @ values[-1] + 0.6 * (values[0] - values[-1])


def skip_and_mix(skip, own):
    """Simplified blocks (arXiv 2311.01906): (skip + own A) v; shaped attention takes C v away."""
    return lambda kernel, values: skip * values[-1] + own * (kernel @ values[-1])


def pid(p, i, d, beta=1.0):
    """PIDformer, Definition 1, with its sums written out."""

    def layer(kernel, values):
        errors = [beta * values[0] - x for x in values]
        out = kernel @ values[-1]
        if len(values) == 1:
            return out
        return out + p * errors[-1] + i * sum(errors[1:]) + d * (errors[-1] - errors[-2])

    return layer


def stepped(p, i, d, beta, derivative, h):
    """The continuous model in steps of h, its derivative explicit or implicit; z = 0 at first."""

    def layer(kernel, values):
        v = values[-1]
        errors = [beta * values[0] - x for x in values]
        change = h * (kernel @ v - v)
        if len(values) > 1:
            change = change + h * (p * errors[-1] + i * h * sum(errors[1:]))
        if derivative == "implicit":
            return v + change / (1 + d)
        return v + change + (d * (errors[-1] - errors[-2]) if len(values) > 1 else 0)

    return layer


DEFINITIONS = {
    "xsa": xsa,
    "laplacian": laplacian,
    "resformer": resformer,
    "neutreno": neutreno,
    "p": neutreno,
    "pid": pid(0.4, 0.1, 0.05),
    "deit": pid(0.8, 0.5, 0.05, 0.1),
    "skipinit": skip_and_mix(1.0, 0.0),
    Feedback(skip=0.3, own=0.7): skip_and_mix(0.3, 0.7),
    "0.8,0.5,0.05,0.1,implicit": stepped(0.8, 0.5, 0.05, 0.1, "implicit", 1.0),
    "0.4,0.1,0.05,1,step=0.5": stepped(0.4, 0.1, 0.05, 1.0, "explicit", 0.5),
    "0.5,0.3,0.2,0.5,implicit,step=0.5": stepped(0.5, 0.3, 0.2, 0.5, "implicit", 0.5),
}


WITH_ATTENTION = [name for name in DEFINITIONS if name != "skipinit"]
"""What a network takes without learning it: skipinit starts with attention switched off."""


def attended(q, k, is_causal=False):
    """softmax(q k^T / sqrt(D)), (B, H, N, N)."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if is_causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:]).tril().bool(), -torch.inf)
    return scores.softmax(-1)


def by_definition(name, qkvs, is_causal=False):
    """The outputs of layers with these q (B, H, N, D), k and v (B, Hkv, N, D)."""
    outs, values = [], []
    for q, k, v in qkvs:
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
        values.append(v)
        outs.append(DEFINITIONS[name](attended(q, k, is_causal), values))
    return outs
