"""Convert a Hugging Face model, save it with its gains, and load it again."""

import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import pidformer as pf

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=100,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
)
llama = LlamaForCausalLM(config).eval()  # yours: LlamaForCausalLM.from_pretrained(FOLDER)
tokens = torch.randint(100, (2, 12))

unchanged = pf.convert(llama, gains="0,0,0")
assert torch.equal(unchanged(tokens).logits, llama(tokens).logits)  # zero gains: the same model

model = pf.convert(llama, gains="0.4,0.1,0.05")
moved = (model(tokens).logits - llama(tokens).logits).abs().max().item()
print(f"with gains 0.4, 0.1, 0.05 the logits move by up to {moved:.3f}: fine-tune it")

with tempfile.TemporaryDirectory() as folder:
    model.save_pretrained(folder)  # the gains are in config.json
    again = pf.from_pretrained(folder)
assert torch.equal(again(tokens).logits, model(tokens).logits)

prompt = torch.randint(100, (1, 5))
mask = torch.ones_like(prompt)
text = again.generate(prompt, attention_mask=mask, max_new_tokens=8, do_sample=False)
print("generated", text[0, 5:].tolist())
