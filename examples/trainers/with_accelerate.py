"""Accelerate: the prepared optimizer steps, accumulates and resumes like any other."""

import tempfile

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import steepest


def make():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 4)
    )
    optimizer = steepest.create_optimizer(model, "normuon", lr=3e-3, weight_decay=0.01)
    x = torch.randn(64, 16)
    data = DataLoader(TensorDataset(x, x[:, :4].argmax(dim=1)), batch_size=8)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    return accelerator, *accelerator.prepare(model, optimizer, data, schedule)


def train(accelerator, model, optimizer, data, schedule, epochs):
    for epoch in epochs:
        total = 0.0
        for x, y in data:
            with accelerator.accumulate(model):
                loss = functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            total += loss.item() / len(data)
        print(f"epoch {epoch}  loss {total:.4f}")


def main() -> None:
    straight = make()
    train(*straight, range(4))
    first = make()
    train(*first, range(2))
    with tempfile.TemporaryDirectory() as folder:
        first[0].save_state(folder)
        resumed = make()
        resumed[0].load_state(folder)
    train(*resumed, range(2, 4))
    pairs = zip(straight[1].parameters(), resumed[1].parameters(), strict=True)
    print("resumed run equals the straight one:", all(torch.equal(a, b) for a, b in pairs))


if __name__ == "__main__":
    main()
