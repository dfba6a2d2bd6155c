"""Put the controller into your own timm ViT, train it on digits, and take it out again."""

import timm
import torch
from torch.nn.functional import cross_entropy

import pidformer as pf

torch.manual_seed(0)
digits = pf.data.open_images("digits", "train")
pixels, labels = pf.data.sample_images(digits, 1000, image_size=8, crop_ratio=1.0)
images = (pixels.expand(-1, 3, -1, -1) - 0.5) / 0.5  # grey to RGB, normalised as timm's ViT wants

sizes = {"img_size": 8, "patch_size": 2, "embed_dim": 64, "depth": 6, "num_heads": 2}
vit = timm.create_model("vit_tiny_patch16_224", num_classes=10, **sizes)
model = pf.convert(vit, gains="default")  # a copy, with the weights of `vit`

optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for epoch in range(8):
    for rows in torch.randperm(len(images)).split(64):
        loss = cross_entropy(model(images[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch + 1}: loss {loss.item():.3f}")

model.eval()
right = (model(images).argmax(1) == labels).float().mean().item()
print(f"{100 * right:.1f} % of the training images right")

# How alike are the tokens of an image after each layer, with control and with it taken out?
plain = pf.revert(pf.convert(model, gains="default"))  # of a copy: revert works in place
for name, network in {"with control": model, "without": plain}.items():
    similarity = pf.analysis.token_similarity(network, images[:64])
    print(f"{name:>12}:", " ".join(f"{value:.2f}" for value in similarity.tolist()))
