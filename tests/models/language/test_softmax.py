import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from pidformer.models.language.softmax import AdaptiveSoftmax, FullSoftmax, nll


def adaptive(vocab=50, width=8, cutoffs=(10, 25, 40), seed=0):
    torch.manual_seed(seed)
    head = AdaptiveSoftmax(vocab, width, cutoffs).double()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_()
    return head


def test_adaptive_probabilities_equal_torchs_own_adaptive_softmax():
    head = adaptive()
    table = head.weight
    with torch.no_grad():
        head.bias[10:] = 0  # torch's tails have no bias
    other = torch.nn.AdaptiveLogSoftmaxWithLoss(8, 50, [10, 25, 40], div_value=1, head_bias=True)
    other.double()
    with torch.no_grad():
        other.head.weight.copy_(torch.cat([table[:10], head.cluster_weight]))
        other.head.bias.copy_(torch.cat([head.bias[:10], head.cluster_bias]))
        for tail, (low, high) in zip(other.tail, ((10, 25), (25, 40), (40, 50)), strict=True):
            tail[0].weight.copy_(torch.eye(8))
            tail[1].weight.copy_(table[low:high])
    hidden = torch.randn(200, 8, dtype=torch.float64)
    targets = torch.randint(0, 50, (200,))
    torch.testing.assert_close(head(hidden), other.log_prob(hidden))
    torch.testing.assert_close(nll(head, hidden, targets), -other(hidden, targets).output)


@settings(deadline=None, max_examples=25)
@given(
    cutoffs=st.lists(st.integers(1, 29), min_size=1, max_size=4, unique=True).map(sorted),
    seed=st.integers(0, 1000),
)
def test_adaptive_probabilities_sum_to_one_and_are_what_the_loss_uses(cutoffs, seed):
    head = adaptive(30, 6, cutoffs, seed)
    hidden = torch.randn(40, 6, dtype=torch.float64)
    targets = torch.randint(0, 30, (40,))
    log_p = head(hidden)
    torch.testing.assert_close(log_p.exp().sum(-1), torch.ones(40).double())
    expected = -log_p.gather(1, targets[:, None])[:, 0]
    torch.testing.assert_close(nll(head, hidden, targets), expected)


def test_with_clusters_as_likely_as_their_words_adaptive_equals_full_softmax():
    """The same distribution, if a cluster's logit is the log-sum-exp of its words' logits."""
    head = adaptive(width=8)
    hidden = torch.randn(1, 8, dtype=torch.float64)
    logits = F.linear(hidden, head.weight, head.bias)[0]
    with torch.no_grad():
        for cluster, (low, high) in enumerate(((10, 25), (25, 40), (40, 50))):
            head.cluster_weight[cluster] = 0
            head.cluster_bias[cluster] = logits[low:high].logsumexp(0)
    full = FullSoftmax(50, 8, bias=True).double()
    full.weight, full.bias = head.weight, head.bias
    torch.testing.assert_close(head(hidden).exp(), full(hidden).softmax(-1))


@pytest.mark.parametrize("kind", ["full", "adaptive"])
def test_ignored_targets_cost_nothing_and_send_no_gradient(kind):
    head = adaptive()
    if kind == "full":
        full = FullSoftmax(50, 8, bias=False).double()
        full.weight = head.weight
        head = full
    hidden = torch.randn(6, 8, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([3, -100, 30, -100, 45, 12])
    loss = nll(head, hidden, targets)
    loss.sum().backward()
    ignored = targets == -100
    assert (loss[ignored] == 0).all() and (hidden.grad[ignored] == 0).all()
    assert (loss[~ignored] > 0).all() and (hidden.grad[~ignored].abs().sum(-1) > 0).all()
