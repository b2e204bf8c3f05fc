"""Networks for text: from sequences of tokens to one score per class, or per next token.

The input has shape (length,) and holds integers below `vocabulary`; 0 is padding, which both networks ignore.
"""

import math

import torch
from torch import nn
from torch.nn import functional

PADDING = 0


class TextCNN(nn.Module):
    """Convolutions of three widths over an embedding, max-pooling over time, one dense layer.

    Kim: *Convolutional Neural Networks for Sentence Classification*, EMNLP 2014, with 100 filters each of 3, 4 and 5
    tokens. It has no dropout, so that a device's training depends on its batches alone.
    """

    def __init__(self, vocabulary: int, classes: int, *, embedding: int = 128, filters: int = 100) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding, padding_idx=PADDING)
        # Padded by the whole width, every text has a window of only padding, so that more padding changes nothing.
        self.convolutions = nn.ModuleList(nn.Conv1d(embedding, filters, width, padding=width) for width in (3, 4, 5))
        self.head = nn.Linear(3 * filters, classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """One score per class."""
        embedded = self.embedding(tokens).transpose(1, 2)
        features = [functional.relu(convolution(embedded)).amax(dim=2) for convolution in self.convolutions]
        scores: torch.Tensor = self.head(torch.cat(features, dim=1))
        return scores


class TextTransformer(nn.Module):
    """A small transformer encoder: learned positions, pre-normalisation, the mean over the tokens.

    Vaswani et al.: *Attention Is All You Need*, NeurIPS 2017. With `causal` it is a language model: each position sees
    only those before it, and the output has a score for every token of the vocabulary at every position.
    """

    def __init__(
        self,
        vocabulary: int,
        classes: int,
        *,
        length: int = 512,
        embedding: int = 64,
        heads: int = 4,
        layers: int = 2,
        causal: bool = False,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding, padding_idx=PADDING)
        self.positions = nn.Embedding(length, embedding)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(embedding, heads, 4 * embedding, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(embedding)
        self.head = nn.Linear(embedding, classes)
        self.causal = causal
        self.layer_groups = [["embedding", "positions"], *([f"layers.{k}"] for k in range(layers)), ["norm", "head"]]
        for table in (self.embedding, self.positions):
            nn.init.normal_(table.weight, std=1.0 / math.sqrt(embedding))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """One score per class, at every position if the network is causal."""
        absent = tokens == PADDING
        indices = torch.arange(tokens.shape[1], device=tokens.device)
        states = self.embedding(tokens) + self.positions(indices)
        hidden = torch.ones(len(indices), len(indices), dtype=torch.bool, device=tokens.device).triu(1)
        seen_by_none = absent.all(dim=1, keepdim=True)  # attention to no token at all would give NaN
        for layer in self.layers:
            states = layer(
                states,
                src_mask=hidden if self.causal else None,
                src_key_padding_mask=None if self.causal else absent & ~seen_by_none,
            )
        states = self.norm(states)
        if not self.causal:
            present = (~absent).unsqueeze(2).to(states.dtype)
            states = (states * present).sum(dim=1) / present.sum(dim=1).clamp(min=1.0)
        scores: torch.Tensor = self.head(states)
        return scores


def textcnn(
    input_shape: tuple[int, ...], classes: int, vocabulary: int, embedding: int = 128, filters: int = 100
) -> nn.Module:
    """TextCNN: convolutions over 3, 4 and 5 tokens, max-pooling over time, one dense layer (Kim 2014)."""
    return TextCNN(vocabulary, classes, embedding=embedding, filters=filters)


def transformer(
    input_shape: tuple[int, ...],
    classes: int,
    vocabulary: int,
    embedding: int = 64,
    heads: int = 4,
    blocks: int = 2,
) -> nn.Module:
    """A small transformer encoder for texts: the mean over its tokens, one dense layer (Vaswani et al. 2017)."""
    length = max(1, *input_shape)
    return TextTransformer(vocabulary, classes, length=length, embedding=embedding, heads=heads, layers=blocks)


def transformer_lm(
    input_shape: tuple[int, ...],
    classes: int,
    vocabulary: int,
    embedding: int = 64,
    heads: int = 4,
    blocks: int = 2,
) -> nn.Module:
    """A small causal transformer: scores for the next token at every position (Vaswani et al. 2017)."""
    length = max(1, *input_shape)
    return TextTransformer(
        vocabulary, vocabulary, length=length, embedding=embedding, heads=heads, layers=blocks, causal=True
    )
