"""Attack a torchvision-style classifier of your own, in pixel space."""

import torch
from torch.nn.functional import cross_entropy
from torchvision.models import resnet18

import pidformer as pf
from pidformer.robustness import FGSM, PGD, Noise

torch.manual_seed(0)
train = pf.data.open_images("digits", "train")
images, labels = pf.data.sample_images(train, 512, image_size=16)
images = images.expand(-1, 3, -1, -1)  # digits are grey

# Any network from normalised images to logits.
network = resnet18(num_classes=10)
model = pf.PixelModel(network, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))  # from pixels in [0, 1]

optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(4):
    for rows in torch.randperm(len(images)).split(64):
        optimizer.zero_grad()
        cross_entropy(model(images[rows]), labels[rows]).backward()
        optimizer.step()

held_out, truth = pf.data.sample_images(pf.data.open_images("digits", "val"), 100, image_size=16)
batches = [(held_out.expand(-1, 3, -1, -1), truth)]  # a DataLoader does as well
eps = 8 / 255
threats = {
    "clean": None,
    "noise": Noise(eps=eps),
    "FGSM": FGSM(eps=eps),
    "PGD": PGD(eps=eps, steps=10, step_size=2.5 * eps / 10),
}
for name, record in pf.robustness.evaluate(model, batches, threats).items():
    found = record.metrics
    interval = f"[{found['top1_low']:.1f}, {found['top1_high']:.1f}]"
    print(f"{name:>6}: {found['top1']:.1f} % right {interval}")
