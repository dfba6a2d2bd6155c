"""The methods of the family as their papers define them, in a few lines each and no state."""
# v, v_0 (B, H, N, D) values of this and of the first layer; kernel (B, H, N, N)

import math

import torch


def xsa(kernel, v, first):
    """Exclusive self-attention (arXiv 2603.09078): y without its component along v."""
    y = kernel @ v
    return y - (y * v).sum(-1, keepdim=True) / (v * v).sum(-1, keepdim=True) * v


def laplacian(kernel, v, first):
    """Laplacian heads (arXiv 2602.09297), (1 - A) v, with the sign left to the projection."""
    return -(v - kernel @ v)


def resformer(kernel, v, first):
    """Value residual (arXiv 2410.17897): attention over the mean with the first layer's values."""
    return kernel @ (v + first) / 2


def neutreno(kernel, v, first):
    """NeuTRENO (arXiv 2312.00751): the fidelity term alpha (v_0 - v)."""
    return kernel @ v + 0.6 * (first - v)


DEFINITIONS = {"xsa": xsa, "laplacian": laplacian, "resformer": resformer, "neutreno": neutreno}


def attended(q, k, is_causal=False):
    """softmax(q k^T / sqrt(D)), (B, H, N, N)."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if is_causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:]).tril().bool(), -torch.inf)
    return scores.softmax(-1)


def by_definition(name, qkvs, is_causal=False):
    """The outputs of layers with these q (B, H, N, D), k and v (B, Hkv, N, D)."""
    outs, first = [], None
    for q, k, v in qkvs:
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
        first = v if first is None else first
        outs.append(DEFINITIONS[name](attended(q, k, is_causal), v, first))
    return outs
