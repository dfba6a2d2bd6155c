import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dynamo.testing import CompileCounter

from pidformer.models.language.softmax import AdaptiveSoftmax, FullSoftmax, nll
from tests.models.language.conftest import paper_like
from tests.waits import Waits


def adaptive(vocab=50, width=8, cutoffs=(10, 25, 40), seed=0):
    torch.manual_seed(seed)
    head = AdaptiveSoftmax(vocab, width, cutoffs).double()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_()
    return head


@pytest.mark.parametrize("most", [None, [80, 90, 64], [10**6] * 3], ids=["", "just", "all"])
def test_adaptive_probabilities_equal_torchs_own_adaptive_softmax(most):
    head = adaptive()
    table = head.weight
    with torch.no_grad():
        head.bias[10:] = 0  # torch's tails have no bias
    other = torch.nn.AdaptiveLogSoftmaxWithLoss(8, 50, [10, 25, 40], div_value=1, head_bias=True)
    other.double()
    with torch.no_grad():
        other.head.weight.copy_(torch.cat([table[:10], head.cluster_weight]))
        other.head.bias.copy_(torch.cat([head.bias[:10], head.cluster_bias]))
        for tail, (low, high) in zip(other.tail, head.tails(), strict=True):
            tail[0].weight.copy_(torch.eye(8))
            tail[1].weight.copy_(table[low:high])
    hidden = torch.randn(200, 8, dtype=torch.float64)
    targets = torch.randint(0, 50, (200,))
    torch.testing.assert_close(head(hidden), other.log_prob(hidden))
    ours, theirs = (hidden.clone().requires_grad_() for _ in range(2))
    losses = nll(head, ours, targets, most), -other(theirs, targets).output
    torch.testing.assert_close(*losses)
    weight = torch.randn(200, dtype=torch.float64)
    for loss in losses:
        (loss * weight).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)
    firsts = torch.cat([table.grad[:10], head.cluster_weight.grad])
    torch.testing.assert_close(firsts, other.head.weight.grad)
    for tail, (low, high) in zip(other.tail, head.tails(), strict=True):
        torch.testing.assert_close(table.grad[low:high], tail[1].weight.grad)


def test_a_broken_promise_of_few_rare_words_is_no_number():
    head, hidden = adaptive(), torch.randn(6, 8, dtype=torch.float64)
    targets = torch.tensor([3, 12, 13, -100, 41, 5])
    assert nll(head, hidden, targets, [2, 1, 1]).isfinite().all()
    assert nll(head, hidden, targets, [1, 1, 1]).isnan().all()


@pytest.mark.parametrize(("most", "waits"), [(None, ["nonzero"] * 2), ([64, 64], [])])
def test_training_with_a_promise_waits_for_nothing(most, waits):
    model = paper_like("0.4,0.3,0.1,0.5").train()
    ids, targets = torch.randint(0, 61, (2, 2, 16))
    with Waits() as seen:
        loss = model(input_ids=ids, targets=targets, most_rare=most).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    assert seen.waits == waits


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_a_step_with_a_promise_does_not_wait_and_equals_the_cpus():
    model = paper_like("0.4,0.3,0.1,0.5", hidden_dropout=0.0).train()
    ids, targets = torch.randint(0, 61, (2, 2, 16))
    expected = model(input_ids=ids, targets=targets).loss
    model.cuda()
    given = {"input_ids": ids.cuda(), "targets": targets.cuda(), "most_rare": [64, 64]}
    model(**given)  # kernels are compiled, and tried
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = model(**given).loss
        found.backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_with_a_promise_the_whole_network_is_one_graph():
    counter = CompileCounter()
    model = paper_like(None, hidden_dropout=0.0).train()
    ids, targets = torch.randint(0, 61, (2, 2, 16))
    expected = model(input_ids=ids, targets=targets).loss
    model.compile(backend=counter, fullgraph=True)
    found = model(input_ids=ids, targets=targets, most_rare=[64, 64]).loss
    assert counter.frame_count == 1
    torch.testing.assert_close(found, expected)


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
