"""Text classification: sentences of different lengths, padded per batch. Run it: offbeat run reviews.toml"""

import numpy as np
import torch
from torch import nn

from offbeat.data import Dataset
from offbeat.data.samples import Ragged

GOOD, BAD, WORDS = 1, 2, 50


def load(seed):
    random = np.random.default_rng(seed)
    labels = random.integers(0, 2, 600)
    texts = []
    for label in labels:
        text = random.integers(3, WORDS, random.integers(4, 12))
        text[random.integers(len(text))] = GOOD if label else BAD
        texts.append(text)
    x = Ragged.of(texts, padding=0)
    return Dataset(
        train_x=x.take(np.arange(500)), train_y=labels[:500], test_x=x.take(np.arange(500, 600)), test_y=labels[500:]
    )


class TextCNN(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 16, padding_idx=0)
        self.convolution = nn.Conv1d(16, 24, 3, padding=1)
        self.head = nn.Linear(24, classes)

    def forward(self, tokens):
        features = torch.relu(self.convolution(self.embedding(tokens).transpose(1, 2)))
        return self.head(features.amax(2))


def network(input_shape, classes):
    return TextCNN(classes)
