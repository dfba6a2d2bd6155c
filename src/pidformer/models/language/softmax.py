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

    def forward(self, hidden: Tensor, targets: Tensor | None = None) -> Tensor:
        """Log-probabilities (..., V): logits whose softmax is the distribution itself.

        With `targets` (N,) for hidden states (N, C), -log p(target | h) of each; 0 where the target
        is -100. It is a call too, so that hooks that bring the weights see it.
        """
        if targets is not None:
            return self._nll(hidden, targets)
        first = self.edges[0]
        head = self._head(hidden)
        parts = [head[..., :first]]
        for cluster, (low, high) in enumerate(self._tails()):
            parts.append(self._tail(hidden, low, high) + head[..., first + cluster, None])
        return torch.cat(parts, dim=-1)

    # The rows of a cluster are found by value: no graph of fixed shapes holds that.
    @torch.compiler.disable
    def _nll(self, hidden: Tensor, targets: Tensor) -> Tensor:
        first = self.edges[0]
        head = self._head(hidden)
        column = targets.clamp(min=0)
        for cluster, (low, high) in enumerate(self._tails()):
            column = torch.where((targets >= low) & (targets < high), first + cluster, column)
        nll = -head.gather(1, column[:, None])[:, 0]
        nll = torch.where(targets == IGNORED, torch.zeros_like(nll), nll)
        for low, high in self._tails():
            rows = ((targets >= low) & (targets < high)).nonzero()[:, 0]
            words = (targets[rows] - low)[:, None]
            tail = self._tail(hidden[rows], low, high)
            nll = nll.index_add(0, rows, -tail.gather(1, words)[:, 0])
        return nll

    def _tails(self) -> list[tuple[int, int]]:
        return list(pairwise(self.edges))

    def _head(self, hidden: Tensor) -> Tensor:
        first = self.edges[0]
        weight = torch.cat([self.weight[:first], self.cluster_weight])
        bias = torch.cat([self.bias[:first], self.cluster_bias])
        return widened(F.linear(hidden, weight, bias)).log_softmax(-1)

    def _tail(self, hidden: Tensor, low: int, high: int) -> Tensor:
        logits = F.linear(hidden, self.weight[low:high], self.bias[low:high])
        return widened(logits).log_softmax(-1)


def nll(head: nn.Module, hidden: Tensor, targets: Tensor) -> Tensor:
    """-log p(target | h) of each of (N, C), (N,); 0 where the target is -100."""
    if isinstance(head, AdaptiveSoftmax):
        return head(hidden, targets)
    return F.cross_entropy(widened(head(hidden)), targets, reduction="none", ignore_index=IGNORED)
