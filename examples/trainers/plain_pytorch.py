"""Plain PyTorch: gradient accumulation, mixed precision, clipping, a schedule, a resumed run."""

import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import steepest

MICRO_BATCHES, STEPS = 4, 6


def make():
    """Return a model with its optimizer, schedule and scaler."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 4)
    )
    optimizer = steepest.create_optimizer(model, "muon", lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4)
    return model, optimizer, schedule, torch.amp.GradScaler("cpu")


def batch(step, part):
    generator = torch.Generator().manual_seed(100 * step + part)
    x = torch.randn(8, 16, generator=generator)
    return x, x[:, :4].argmax(dim=1)


def train(model, optimizer, schedule, scaler, steps):
    for step in steps:
        total = 0.0
        for part in range(MICRO_BATCHES):  # one step of the optimizer for all of them
            x, y = batch(step, part)
            with torch.autocast("cpu", torch.bfloat16):
                loss = functional.cross_entropy(model(x), y) / MICRO_BATCHES
            scaler.scale(loss).backward()
            total += loss.item()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        schedule.step()
        print(f"step {step}  loss {total:.4f}  rates {[g['lr'] for g in optimizer.param_groups]}")


def main() -> None:
    straight = make()
    print(straight[1].plan)
    train(*straight, range(STEPS))
    first = make()
    train(*first, range(STEPS // 2))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.pt"
        torch.save([part.state_dict() for part in first], path)
        resumed = make()
        for part, state in zip(resumed, torch.load(path, weights_only=True), strict=True):
            part.load_state_dict(state)
    train(*resumed, range(STEPS // 2, STEPS))
    pairs = zip(straight[0].parameters(), resumed[0].parameters(), strict=True)
    print("resumed run equals the straight one:", all(torch.equal(a, b) for a, b in pairs))


if __name__ == "__main__":
    main()
