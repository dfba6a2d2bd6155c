"""Whole networks whose attention is written out by the definition of a method's paper."""
# B batch, H heads, N tokens, D width of a head, C width

import torch
import torch.nn.functional as F
import transformers

from pidformer.models.language.positions import rotated
from tests.ops.relatives import DEFINITIONS, attended


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def same_gradients(ours, theirs, leaves):
    for one, two in zip(
        torch.autograd.grad(ours.square().sum(), leaves, retain_graph=True),
        torch.autograd.grad(theirs.square().sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-9)


def heads_of(x, width):
    """(B, N, H D) to (B, H, N, D)."""
    return x.unflatten(-1, (-1, width)).transpose(1, 2)


def repeated(x, heads):
    return x.repeat_interleave(heads // x.shape[1], dim=1)


def mixed(name, attention, given, kernel, values):
    """What heads give: the paper's lines, with the weights of those methods that have some."""
    if name == "gated":
        gate = torch.sigmoid(given @ attention.gate.weight.T)
        return heads_of(gate, values[-1].shape[-1]) * (kernel @ values[-1])
    if name == "skipinit":
        skip, own = attention.gains.raw_terms.double()[..., None, None]
        skip, own = (x.repeat_interleave(kernel.shape[1] // len(x), dim=0) for x in (skip, own))
        return skip * values[-1] + own * (kernel @ values[-1])
    return DEFINITIONS[name](kernel, values)


def blocks_of(blocks, x, name):
    """Pre-norm blocks of timm's names."""
    values = []
    for block in blocks:
        given = block.norm1(x)
        packed = block.attn.qkv(given).unflatten(-1, (3, block.attn.num_heads, -1))
        q, k, v = packed.permute(2, 0, 3, 1, 4).unbind(0)
        values.append(v)
        out = mixed(name, block.attn, given, attended(q, k), values)
        x = x + block.attn.proj(out.transpose(1, 2).flatten(2))
        x = x + block.mlp(block.norm2(x))
    return x


def vision(model, images, name):
    """Tokens after the last normalisation (B, N, C), the class token first."""
    x = model.norm_pre(model._pos_embed(model.patch_embed(images)))
    return model.norm(blocks_of(model.blocks, x, name))


def segmenter(model, images, name):
    """Logits of images of whole patches; encoder and decoder each have a reference of their own."""
    decoder = model.decoder
    patches = decoder.proj(vision(model.encoder, images, name)[:, 1:])
    classes = decoder.class_tokens.expand(len(images), -1, -1)
    x = decoder.norm(blocks_of(decoder.blocks, torch.cat([patches, classes], dim=1), name))
    count = patches.shape[1]
    x, z = decoder.proj_patches(x[:, :count]), decoder.proj_classes(x[:, count:])
    cosine = torch.einsum("bnc,bkc->bnk", x / x.norm(dim=-1, keepdim=True), F.normalize(z, dim=-1))
    side = int(count**0.5)
    planes = decoder.mask_norm(cosine).mT.unflatten(2, (side, side))
    return F.interpolate(planes, size=images.shape[-2:], mode="bilinear", align_corners=False)


def language(model, tokens, name):
    """The last hidden states of our language model: pre-norm, rotary positions, no padding."""
    inner, config = model.model, model.config
    places = torch.arange(tokens.shape[1])[None]
    x, turned = inner._placed(inner.embed_tokens(tokens), places, None)
    heads, values = config.num_attention_heads, []
    for block in inner.layers:
        attention, given = block.self_attn, block.attention_norm(x)
        q, k, v = (
            heads_of(project(given), config.head_dim)
            for project in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        values.append(repeated(v, heads))
        q, k = rotated(q, turned), rotated(k, turned)
        kernel = attended(q, repeated(k, heads), is_causal=True)
        if name == "value_embedding":
            table = repeated(heads_of(inner.embed_values(tokens), config.head_dim), heads)
            out = kernel @ (0.5 * table + 0.5 * values[-1])
        else:
            out = mixed(name, attention, given, kernel, values)
        x = x + attention.o_proj(out.transpose(1, 2).flatten(2))
        x = x + block.mlp(block.mlp_norm(x))
    return inner.norm(x)


def hugging_face(model, tokens, name):
    """Logits of a model of transformers, unconverted, that attends by the definition."""
    values = []

    def layer(module, query, key, value, mask, scaling, **options):
        key, value = (repeated(x, query.shape[1]) for x in (key, value))
        values.append(value)
        assert scaling == query.shape[-1] ** -0.5
        out = DEFINITIONS[name](attended(query, key, module.is_causal), values)
        return out.transpose(1, 2), None

    transformers.AttentionInterface.register("by_definition", layer)
    before = model.config._attn_implementation
    model.set_attn_implementation("by_definition")
    try:
        return model(tokens).logits
    finally:
        model.set_attn_implementation(before)
