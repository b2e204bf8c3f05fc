"""A word tokeniser, and a vocabulary of the most frequent words.

A text is lower-cased, and HTML line breaks become spaces. A word is a run of letters and digits with apostrophes inside
("don't"); everything else separates words.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from offbeat.data.dataset import Labels

PADDING, UNKNOWN = 0, 1
"""The tokens that pad short texts, and that stand for words outside the vocabulary."""
WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")


def words(text: str) -> Iterator[str]:
    """The words of a text.

    >>> list(words("It's GREAT,<br />isn't it? 10/10"))
    ["it's", 'great', "isn't", 'it', '10', '10']
    """
    return (found.group() for found in WORD.finditer(text.lower().replace("<br />", " ")))


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A token for each known word."""

    token_of: dict[str, int]

    @classmethod
    def of(cls, texts: Iterable[str], size: int) -> "Vocabulary":
        """The most frequent words of these texts; ties are broken alphabetically.

        Padding and unknown words count among the `size` tokens.

        >>> Vocabulary.of(["c b c", "a c d"], size=4).token_of  # a, b and d occur once each
        {'c': 2, 'a': 3}
        """
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(words(text))
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        return cls({word: token for token, word in enumerate(ranked[: size - 2], 2)})

    def tokens(self, texts: Sequence[str], length: int) -> Labels:
        """The first `length` words of each text as tokens [texts, length]; short texts are padded at the end.

        >>> Vocabulary({"b": 2, "a": 3}).tokens(["a c b", "b"], length=2).tolist()
        [[3, 1], [2, 0]]
        """
        found = np.full((len(texts), length), PADDING, dtype=np.int64)
        for row, text in zip(found, texts, strict=True):
            tokens = [self.token_of.get(word, UNKNOWN) for word in islice(words(text), length)]
            row[: len(tokens)] = tokens
        return found
