"""The ramp under a real Trainer of Lightning, where it is installed."""

import pytest
import torch
import torch.nn.functional as F

import pidformer as pf
from pidformer.convert import GainRamp
from tests.convert.families import timm_model

lightning = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")

GAINS = pf.PIDGains(p=0.4, i=0.2, d=0.1)


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = pf.convert(timm_model("vit", depth=2), GAINS)

    def training_step(self, batch, _):
        images, labels = batch
        return F.cross_entropy(self.net(images), labels)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("accumulate", "wanted"), [(1, [0, 0.5, 1, 1]), (2, [0, 0, 0.5, 0.5, 1, 1, 1, 1])]
)
def test_lightnings_trainer_ramps_by_steps_of_the_optimizer(tmp_path, accumulate, wanted):
    torch.manual_seed(0)
    module, shares = Classifier(), []
    before = module.net.blocks[1].attn.proj.weight.detach().clone()
    module.net.blocks[1].attn.register_forward_pre_hook(
        lambda attention, _: shares.append(float(attention.gain_share))
    )
    rows = torch.utils.data.TensorDataset(torch.randn(16, 3, 32, 32), torch.arange(16) % 5)
    lightning.Trainer(
        max_steps=4,
        accumulate_grad_batches=accumulate,
        callbacks=[GainRamp(share=0.5).lightning_callback()],
        accelerator="cpu",
        default_root_dir=tmp_path,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(module, torch.utils.data.DataLoader(rows, batch_size=2))
    assert shares == wanted
    assert module.net.blocks[1].attn.gain_share is None  # whole again, without a buffer
    assert not torch.equal(module.net.blocks[1].attn.proj.weight, before)
