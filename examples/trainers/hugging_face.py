"""Hugging Face Trainer: a tiny GPT-2 with random weights, its optimizer made in one line."""

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import steepest

TEXT = "the quick brown fox jumps over the lazy dog. " * 8


def make_model():
    torch.manual_seed(0)
    config = GPT2Config(
        n_embd=32, n_head=4, n_layer=2, n_positions=32, vocab_size=128, bos_token_id=0,
        eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def make_data():
    codes = torch.tensor([ord(character) for character in TEXT])
    rows = codes.unfold(0, 32, 8)
    return [{"input_ids": row, "labels": row} for row in rows]


def train(folder, *, steps, resume=False):
    model = make_model()
    optimizer = steepest.create_optimizer(model, "muon", lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=8)
    arguments = TrainingArguments(
        folder, max_steps=steps, per_device_train_batch_size=8, save_steps=4, logging_steps=4,
        report_to=[], use_cpu=True, disable_tqdm=True, seed=0, data_seed=0,
    )  # fmt: skip
    trainer = Trainer(model, arguments, train_dataset=make_data(), optimizers=(optimizer, schedule))
    result = trainer.train(resume_from_checkpoint=resume)
    print(f"after {result.global_step} steps: training loss {result.training_loss:.4f}")
    return model


def main() -> None:
    with tempfile.TemporaryDirectory() as straight, tempfile.TemporaryDirectory() as halved:
        model = train(straight, steps=8)
        train(halved, steps=4)
        resumed = train(halved, steps=8, resume=True)
    pairs = zip(model.parameters(), resumed.parameters(), strict=True)
    print("resumed run equals the straight one:", all(torch.equal(a, b) for a, b in pairs))


if __name__ == "__main__":
    main()
