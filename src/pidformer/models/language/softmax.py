"""From hidden states to words: one table, tied to the embedding, full or adaptive softmax."""
# N tokens, C width, V vocabulary

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pidformer.control.pid import widened

IGNORED = -100


class FullSoftmax(nn.Linear):
    """Logits W h + b of p(w | h) = softmax(W h + b); W may be the embedding table."""

    def __init__(self, vocab_size: int, width: int, *, bias: bool) -> None:
        super().__init__(width, vocab_size, bias=bias)

    def reset_parameters(self) -> None:
        """Nothing: the model draws its weights, and a table that is tied is drawn once."""


class AdaptiveSoftmax(nn.Module):
    """Words in clusters by frequency: rare words cost only when they come up.

        p(w | h) = softmax over [first words, one entry a cluster]                for frequent w
        p(w | h) = p(cluster of w | h) * softmax over the words of that cluster   for the others

    An exact distribution over all words, and its exact NLL. All words share one table, which may
    be the embedding's, and one bias; each cluster has a row and a bias of its own in the head.
    """

    def __init__(self, vocab_size: int, width: int, cutoffs: Sequence[int]) -> None:
        super().__init__()
        self.edges = [*cutoffs, vocab_size]
        self.weight = nn.Parameter(torch.empty(vocab_size, width))
        self.bias = nn.Parameter(torch.empty(vocab_size))
        self.cluster_weight = nn.Parameter(torch.empty(len(cutoffs), width))
        self.cluster_bias = nn.Parameter(torch.empty(len(cutoffs)))

    def forward(
        self, hidden: Tensor, targets: Tensor | None = None, most: Sequence[int] | None = None
    ) -> Tensor:
        """Log-probabilities (..., V): logits whose softmax is the distribution itself.

        With `targets` (N,) for hidden states (N, C), -log p(target | h) of each; 0 where the target
        is -100. It is a call too, so that hooks that bring the weights see it. `most` promises
        that no more targets than these fall into each cluster: all shapes are then known before
        the targets are, so a device is not waited for, and a compiler sees one graph. Where the
        promise is broken, every loss is NaN.
        """
        if targets is not None:
            return (self._found_nll if most is None else self._nll)(hidden, targets, most)
        first = self.edges[0]
        head = self._head(hidden).log_softmax(-1)
        parts = [head[..., :first]]
        for cluster, (low, high) in enumerate(self.tails()):
            tail = self._tail(hidden, low, high).log_softmax(-1)
            parts.append(tail + head[..., first + cluster, None])
        return torch.cat(parts, dim=-1)

    # The rows of a cluster are found by value: no graph of fixed shapes holds that.
    @torch.compiler.disable
    def _found_nll(self, hidden: Tensor, targets: Tensor, most: None) -> Tensor:
        return self._nll(hidden, targets, most)

    def _nll(self, hidden: Tensor, targets: Tensor, most: Sequence[int] | None) -> Tensor:
        first, column = self.edges[0], targets
        inside = [(targets >= low) & (targets < high) for low, high in self.tails()]
        for cluster, is_in in enumerate(inside):
            column = torch.where(is_in, first + cluster, column)
        nll = _cross_entropy(self._head(hidden), column)
        for cluster, (low, high) in enumerate(self.tails()):
            is_in = inside[cluster]
            if most is None:
                rows = is_in.nonzero()[:, 0]
                words = targets[rows] - low
            else:  # all that are in, and others to fill up, which count nothing
                count = min(most[cluster], len(targets))
                is_one, rows = is_in.int().topk(count, sorted=False)
                words = torch.where(is_one > 0, targets[rows] - low, IGNORED)
                nll = torch.where(is_in.sum() > count, torch.nan, nll)
            nll = nll.index_add(0, rows, _cross_entropy(self._tail(hidden[rows], low, high), words))
        return nll

    def tails(self) -> list[tuple[int, int]]:
        """The words of each cluster: the first, and the one after the last."""
        return list(pairwise(self.edges))

    def _head(self, hidden: Tensor) -> Tensor:
        first = self.edges[0]
        weight = torch.cat([self.weight[:first], self.cluster_weight])
        bias = torch.cat([self.bias[:first], self.cluster_bias])
        return widened(F.linear(hidden, weight, bias))

    def _tail(self, hidden: Tensor, low: int, high: int) -> Tensor:
        return widened(F.linear(hidden, self.weight[low:high], self.bias[low:high]))


def nll(
    head: nn.Module, hidden: Tensor, targets: Tensor, most: Sequence[int] | None = None
) -> Tensor:
    """-log p(target | h) of each of (N, C), (N,); 0 where the target is -100."""
    if isinstance(head, AdaptiveSoftmax):
        return head(hidden, targets, most)
    return _cross_entropy(widened(head(hidden)), targets)


def _cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits, targets, reduction="none", ignore_index=IGNORED)
