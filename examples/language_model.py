"""Train the causal language model for 120 steps, and generate with a key/value cache."""

import time

import torch

import pidformer as pf

STEPS = 120
torch.manual_seed(0)
text = "the controller feeds back what the token has lost since the first layer. " * 40
letters = sorted(set(text))
tokens = torch.tensor([letters.index(letter) for letter in text])

config = pf.PIDformerConfig(
    vocab_size=len(letters),
    hidden_size=64,
    num_hidden_layers=3,
    num_attention_heads=4,
    gains="0.4,0.1,0.05",  # None is the softmax twin, with the same parameters
)
model = pf.PIDformerForCausalLM(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for _ in range(STEPS):
    starts = torch.randint(len(tokens) - 64, (16,))
    batch = torch.stack([tokens[start : start + 64] for start in starts.tolist()])
    loss = model(batch, labels=batch).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f} nats per letter after {STEPS} steps")

model.eval()
prompt = tokens[:24][None]
settings = {"attention_mask": torch.ones_like(prompt), "max_new_tokens": 48, "do_sample": False}
written = {}
for use_cache in (True, False):
    begin = time.perf_counter()
    written[use_cache] = model.generate(prompt, use_cache=use_cache, **settings)
    print(f"use_cache={use_cache}: {time.perf_counter() - begin:.2f} s")
assert torch.equal(written[True], written[False])  # the cache changes nothing
print("".join(letters[index] for index in written[True][0].tolist()))
