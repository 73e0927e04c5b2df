"""Train a small network: its hidden matrices with Muon, the rest with AdamW."""

import torch
from sklearn.datasets import load_digits
from torch import nn

import steepest

torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)

model = nn.Sequential(
    nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
)
hidden = [model[0].weight, model[2].weight]
rest = [param for param in model.parameters() if all(param is not matrix for matrix in hidden)]
optimizers = [steepest.Muon(hidden, lr=1e-2), torch.optim.AdamW(rest, lr=1e-2)]

for step in range(100):
    loss = nn.functional.cross_entropy(model(images[:1500]), labels[:1500])
    model.zero_grad()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    if step % 20 == 0:
        print(f"step {step:3d}  loss {loss.item():.4f}")

accuracy = (model(images[1500:]).argmax(dim=1) == labels[1500:]).float().mean()
print(f"accuracy on the 297 images that were held out: {accuracy:.1%}")
