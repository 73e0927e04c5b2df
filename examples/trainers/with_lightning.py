"""Lightning with automatic optimization, which hands the optimizer a closure."""

import logging
import tempfile
import warnings
from pathlib import Path

import lightning
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import steepest


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 4)
        )

    def training_step(self, batch, _):
        x, y = batch
        return functional.cross_entropy(self.layers(x), y)

    def configure_optimizers(self):
        optimizer = steepest.create_optimizer(self, "muon", lr=3e-3, weight_decay=0.01)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def train(epochs, *, checkpoint=None, save=None):
    torch.manual_seed(0)
    model = Classifier()
    x = torch.randn(64, 16, generator=torch.Generator().manual_seed(1))
    data = DataLoader(TensorDataset(x, x[:, :4].argmax(dim=1)), batch_size=8)
    trainer = lightning.Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=1.0,
    )  # fmt: skip
    trainer.fit(model, data, ckpt_path=checkpoint)
    if save is not None:
        trainer.save_checkpoint(save)
    with torch.no_grad():
        loss = functional.cross_entropy(model.layers(x), x[:, :4].argmax(dim=1))
    print(f"after {trainer.current_epoch} epochs: loss {loss:.4f}")
    return model


def main() -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    straight = train(4)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "half.ckpt")
        train(2, save=path)
        resumed = train(4, checkpoint=path)
    pairs = zip(straight.parameters(), resumed.parameters(), strict=True)
    print("resumed run equals the straight one:", all(torch.equal(a, b) for a, b in pairs))


if __name__ == "__main__":
    main()
