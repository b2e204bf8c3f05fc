"""The numbers of Hao et al. 2025 (arXiv 2503.04052), Tables II to V and VII to X, as printed.

All of them are legible in the text that we have. In Table V the first difference does not fit its rows (0.3736 - 0.3361
is 0.0375); two others are off by a rounding (Table IV at delay 3, Table VIII at delay 1).
"""

DELAYS = (1, 3, 5, 7, 9)

SFL: dict[str, tuple[float, float]] = {
    "Over-CNN & IID": (0.9401, 0.0103),
    "CNN & IID": (0.8715, 0.0966),
    "Over-CNN & Non-IID": (0.9390, 0.0106),
    "CNN & Non-IID": (0.8501, 0.1222),
}
"""Table II: accuracy and normalised loss."""

LOSSES: dict[str, dict[str, tuple[float, ...]]] = {
    "IV": {
        "PSURDG": (0.1588, 0.1732, 0.1949, 0.1997, 0.2292),
        "AUDG": (0.1411, 0.1543, 0.1691, 0.1593, 0.1568),
        "Difference": (0.0177, 0.0188, 0.0258, 0.0404, 0.0724),
    },
    "V": {
        "PSURDG": (0.3736, 0.3751, 0.4079, 0.4164, 0.4216),
        "AUDG": (0.3361, 0.3407, 0.3926, 0.3741, 0.3729),
        "Difference": (0.0385, 0.0343, 0.0153, 0.0423, 0.0487),
    },
    "VII": {
        "PSURDG": (0.5238, 0.5650, 0.6027, 0.6217, 0.6429),
        "AUDG": (0.5033, 0.5413, 0.5515, 0.5627, 0.5738),
        "Difference": (0.0205, 0.0237, 0.0512, 0.0590, 0.0691),
    },
    "VIII": {
        "PSURDG": (0.4696, 0.5918, 0.6631, 0.7246, 0.7740),
        "AUDG": (0.4803, 0.5779, 0.5995, 0.6459, 0.6606),
        "Difference": (-0.0106, 0.0139, 0.0636, 0.0788, 0.1134),
    },
    "IX": {
        "PSURDG": (0.4781, 0.6601, 0.7287, 0.8219, 0.8418),
        "AUDG": (0.4913, 0.6699, 0.7314, 0.7699, 0.7745),
        "Difference": (-0.0131, -0.0098, -0.0026, 0.0520, 0.0672),
    },
}
"""Final training loss by mean delay of client 1."""

ACCURACY_DIFFERENCES: dict[str, dict[str, tuple[float, ...]]] = {
    "III": {
        "Over-CNN": (-0.0095, -0.0228, -0.0206, -0.0331, -0.0373),
        "CNN": (-0.0325, -0.0219, -0.0153, -0.0373, -0.0418),
    },
    "X": {
        "Small Non-IID": (-0.0021, -0.0077, -0.0196, -0.0223, -0.0251),
        "Medium Non-IID": (0.0095, -0.0018, -0.0142, -0.0267, -0.0326),
        "Large Non-IID": (0.0131, 0.0082, 0.0012, -0.0297, -0.0363),
    },
}
"""Accuracy of PSURDG minus that of AUDG."""
