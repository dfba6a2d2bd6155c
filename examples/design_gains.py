"""Design gains for the attention spectrum that a model really has."""

import timm
import torch

import pidformer as pf
from pidformer import control

torch.manual_seed(0)
images, _ = pf.data.sample_images(pf.data.open_images("digits", "val"), 16, image_size=32)
model = timm.create_model(
    "vit_tiny_patch16_224", img_size=32, patch_size=8, depth=6, in_chans=1, num_classes=10
).eval()  # yours: trained

# 1. Measure: the eigenvalues kappa of the attention matrices, over images, layers and heads.
spectrum = pf.analysis.attention_spectrum(model, images)
kappas = torch.cat([layer.flatten() for layer in spectrum.kappas])
lowest = float(kappas.real.min())
print(f"{len(kappas)} eigenvalues, real parts from {lowest:.3f} to {float(kappas.real.max()):.3f}")

# 2. Ask: are the paper's ImageNet gains stable on this spectrum?
print("paper:", control.stability_report(pf.PIDGains.paper("deit"), kappas=kappas).verdict)

# 3. Design: the gains whose slowest mode over [kappa_min, 1] decays fastest, and gentle ones
#    that need 24 layers to settle to 1 %.
for depth in (None, 24):
    gains = control.design_gains("PI", kappa_min=lowest, max_settling_depth=depth)
    radius = float(control.spectral_radius(kappas, gains).max())
    print(f"p = {gains.p:.3f}, i = {gains.i:.3f}: largest |pole| on the spectrum {radius:.3f}")

# 4. Use them, and certify the model that came out.
controlled = pf.convert(model, gains)
print(pf.analysis.certify(controlled, images).verdict)
