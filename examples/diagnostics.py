"""Log what the optimizer does: to TensorBoard where it is installed, else to the terminal."""

import importlib.util
import tempfile

import torch
from torch import nn
from torch.nn import functional

import steepest


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 4)
    )
    optimizer = steepest.create_optimizer(model, "muon", lr=3e-3)
    with steepest.Diagnostics(optimizer, every=10) as diagnostics:
        for _ in range(30):
            x = torch.randn(32, 16)
            optimizer.zero_grad()
            functional.cross_entropy(model(x), x[:, :4].argmax(dim=1)).backward()
            optimizer.step()
    records = diagnostics.read()
    for record in records:
        if "orthogonality_error" in record:
            print(
                f"step {record['step']:2}  {record['parameter']}  "
                f"update/weight {record['update_ratio']:.4f}  "
                f"orthogonality error {record['orthogonality_error']:.3f}  "
                f"rank of the momentum {record['momentum_rank']:.1f}"
            )
    if importlib.util.find_spec("tensorboard") is None:
        return
    from torch.utils.tensorboard import SummaryWriter

    with tempfile.TemporaryDirectory() as folder, SummaryWriter(folder) as writer:
        for record in records:
            for name, value in record.items():
                if isinstance(value, float):
                    writer.add_scalar(f"{record['parameter']}/{name}", value, record["step"])


if __name__ == "__main__":
    main()
