"""Small models of many kinds, for the plans in ``golden/``."""

from __future__ import annotations

import torch
from torch import nn


class Attention(nn.Module):
    """Fused query, key and value, with as many key heads as are asked for."""

    def __init__(self, width, heads, key_heads):
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = heads, key_heads, width // heads
        self.qkv = nn.Linear(width, (heads + 2 * key_heads) * self.head_dim, bias=False)
        self.out = nn.Linear(width, width, bias=False)


class GPTBlock(nn.Module):
    def __init__(self, width, heads, key_heads):
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.attention = Attention(width, heads, key_heads)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)


class GPT(nn.Module):
    def __init__(self, *, tied, key_heads=4):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(64, 32), nn.Embedding(16, 32)
        self.blocks = nn.ModuleList(GPTBlock(32, 4, key_heads) for _ in range(3))
        self.norm = nn.RMSNorm(32)
        self.head = nn.Linear(32, 64, bias=False)
        if tied:
            self.head.weight = self.tokens.weight


class Residual(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = nn.Sequential(Residual(16, 16, 1), Residual(16, 16, 1))
        self.layer2 = nn.Sequential(Residual(16, 32, 2), Residual(32, 32, 1))
        self.fc = nn.Linear(32, 10)


class Separable(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(inputs, 1, 1))
        self.depthwise = nn.Conv2d(inputs, inputs, 3, padding=1, groups=inputs, bias=False)
        self.pointwise = nn.Conv2d(inputs, outputs, 1, bias=False)
        self.grouped = nn.Conv2d(outputs, outputs, 3, padding=1, groups=2, bias=False)
        self.norm = nn.GroupNorm(2, outputs)


class MobileNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, 1)
        self.features = nn.Sequential(Separable(8, 16), Separable(16, 32))
        self.upsample = nn.ConvTranspose2d(32, 16, 2, 2)
        self.classifier = nn.Sequential(nn.Dropout(0.1), nn.Linear(16, 5))


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.EmbeddingBag(50, 12)
        self.lstm = nn.LSTM(12, 16, num_layers=2, bidirectional=True, proj_size=8)
        self.gru = nn.GRUCell(16, 8)
        self.tags = nn.Linear(8, 7)


class VisionBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True, add_bias_kv=True)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))
        self.scale = nn.Parameter(torch.ones(width))


class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 24, 4, 4)
        self.class_token = nn.Parameter(torch.zeros(1, 1, 24))
        self.pos_embedding = nn.Parameter(torch.zeros(1, 17, 24))
        self.encoder = nn.ModuleList(VisionBlock(24) for _ in range(2))
        self.norm = nn.LayerNorm(24)
        self.heads = nn.Sequential(nn.Linear(24, 10))


class Experts(nn.Module):
    def __init__(self, count, width, hidden):
        super().__init__()
        self.num_experts = count
        self.gate_up = nn.Parameter(torch.zeros(count, 2 * hidden, width))
        self.down = nn.Parameter(torch.zeros(count, width, hidden))


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(16, 4, bias=False)
        self.experts = Experts(4, 16, 24)
        self.shared = nn.Linear(16, 16)
        self.out = nn.Linear(16, 12)


def _hugging_face(kind, **options):
    def build():
        import transformers

        small = {"hidden_size": 32, "num_attention_heads": 4, "vocab_size": 64, **options}
        if kind == "GPT2LMHead":
            small = {"n_embd": 32, "n_head": 4, "n_layer": 2, "vocab_size": 64, "n_positions": 16}
            small |= {"bos_token_id": 0, "eos_token_id": 0}
        name = kind.removesuffix("LMHead").removesuffix("ForMaskedLM").removesuffix("ForCausalLM")
        config = getattr(transformers, f"{name}Config")(**small)
        return getattr(transformers, f"{kind}Model" if kind == "GPT2LMHead" else kind)(config)

    return build


_LLAMA = {"num_hidden_layers": 2, "num_key_value_heads": 2, "intermediate_size": 64}

MODELS = {
    "gpt": lambda: GPT(tied=False),
    "gpt-tied": lambda: GPT(tied=True),
    "gpt-grouped-queries": lambda: GPT(tied=False, key_heads=2),
    "resnet": ResNet,
    "mobilenet": MobileNet,
    "lstm": Tagger,
    "transformer": lambda: nn.Transformer(32, 4, 2, 2, 64, batch_first=True),
    "vit": ViT,
    "mixture-of-experts": Mixture,
    "hf-gpt2": _hugging_face("GPT2LMHead"),
    "hf-bert": _hugging_face("BertForMaskedLM", num_hidden_layers=2, intermediate_size=64),
    "hf-llama": _hugging_face("LlamaForCausalLM", **_LLAMA),
    "hf-mixtral": _hugging_face("MixtralForCausalLM", **_LLAMA, num_local_experts=4),
}
