"""The decoding kernel, run by Triton's interpreter, against attention and control in torch."""

import os
import subprocess
import sys

import pytest
import torch

from pidformer.control.gains import PIDGains
from pidformer.ops.attention import pid_attention

pytest.importorskip("triton")


def inputs(dtype, query_heads, heads, keys, size, device="cpu", rows=2):
    torch.manual_seed(0)
    room = torch.randn(2, rows, keys, heads, size, device=device).to(dtype)  # others' strides too
    k, v = room.transpose(2, 3).unbind()
    q, value = (
        torch.randn(rows, h, 1, size, device=device).to(dtype) for h in (query_heads, heads)
    )
    mask = torch.rand(rows, 1, 1, keys, device=device) < 0.6
    mask[..., :1] = mask.shape[-1] < 200  # of a long row, whole blocks may be hidden
    mask[..., -1:] = True
    return q, k, v, value, mask


SHAPES = ((4, 4, 37, 16), (6, 2, 300, 20), (2, 1, 64, 64))
TYPES = ((torch.float32, 1e-5), (torch.bfloat16, 1e-2))


def check(decode_attention, device="cpu", shapes=SHAPES, types=TYPES):
    """Three layers of every shape, both readings of the first layer, with and without a mask."""
    for dtype, limit in types:
        for shape in shapes:
            q, k, v, value, mask = inputs(dtype, *shape, device=device)
            if shape[2] == 300:
                mask[..., :140] = False
            for gains in (None, PIDGains(p=0.4, i=0.5, d=0.1, beta=0.3)):
                for first, seen in (("free", mask), ("controlled", None), ("free", mask[:1])):
                    mine, theirs = None, None
                    for layer in range(3):
                        values = value * (1 + layer)
                        found, mine = decode_attention(
                            q, k, v, mine, gains, mask=seen, value=values, first_layer=first
                        )
                        expected, theirs = pid_attention(
                            q, k, v, theirs, gains, attn_mask=seen, value=values, first_layer=first
                        )
                        error = (found - expected).float().norm() / expected.float().norm()
                        assert error < limit, (dtype, shape, gains, first, layer, error)
                        assert found.dtype == expected.dtype and found.shape == expected.shape
                    if gains is not None:
                        torch.testing.assert_close(mine.integral, theirs.integral)


@pytest.mark.slow
def test_the_interpreted_kernel_equals_attention_and_control():
    code = (
        "import torch, pidformer.ops.decode as decode; from tests.ops.test_decode import check;"
        "decode._op = lambda: lambda *given: decode.attend(decode.decode_kernel, *given);"
        "torch.set_grad_enabled(False);"
        "check(decode.decode_attention, shapes=((4, 2, 300, 20),), types=((torch.float32, 1e-5),))"
    )
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@torch.no_grad()
def test_the_kernel_equals_attention_and_control_on_a_gpu():
    from pidformer.ops.decode import decode_attention

    check(decode_attention, "cuda")


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("gains", [None, "0.4,0.3,0.1,0.5"])
@pytest.mark.parametrize("groups", [4, 2])
def test_compiled_decoding_on_a_gpu_takes_the_kernel(monkeypatch, gains, groups):
    pytest.importorskip("transformers")
    from pidformer.ops import dispatch
    from tests.models.language.conftest import some_tokens, tiny_model

    monkeypatch.setattr(dispatch, "_selected", "auto")
    model = tiny_model(gains, num_key_value_heads=groups).cuda()
    tokens, options = some_tokens().cuda(), {"max_new_tokens": 12, "do_sample": False}
    expected = model.generate(tokens, eos_token_id=None, **options)
    found = model.generate(tokens, eos_token_id=None, cache_implementation="static", **options)
    assert torch.equal(found, expected)
    graphs = []
    step = torch.compile(
        lambda token, cache: model(token, past_key_values=cache, use_cache=True).logits,
        backend=lambda graph, _: graphs.append(graph) or graph,
        fullgraph=True,
    )
    from transformers import StaticCache

    with torch.no_grad():
        cache = StaticCache(config=model.config, max_cache_len=16)
        model(tokens, past_key_values=cache, use_cache=True)
        step(tokens[:, :1].contiguous(), cache)
    calls = [node for node in graphs[0].graph.nodes if "decode_attention" in str(node.target)]
    assert len(calls) == 3
