"""The paper's own numbers (ICML 2024), for reference columns: (softmax, PID)."""

from collections.abc import Mapping

Pair = tuple[float, float]

TABLE1: Mapping[tuple[str, str], Pair] = {
    ("clean", "top-1"): (72.17, 73.13),
    ("clean", "top-5"): (91.02, 91.76),
    ("fgsm", "top-1"): (33.64, 38.52),
    ("fgsm", "top-5"): (68.18, 72.53),
    ("pgd", "top-1"): (12.02, 15.08),
    ("pgd", "top-5"): (34.99, 39.69),
    ("spsa", "top-1"): (65.75, 67.98),
    ("spsa", "top-5"): (90.07, 90.58),
    ("sld", "top-1"): (69.32, 70.84),
    ("sld", "top-5"): (90.80, 91.43),
    ("noise", "top-1"): (69.20, 70.87),
    ("noise", "top-5"): (89.67, 90.77),
    ("imagenet-a", "top-1"): (6.90, 8.82),
    ("imagenet-r", "top-1"): (32.83, 34.89),
    ("imagenet-c", "mCE"): (71.20, 68.41),
    ("imagenet-o", "AUPR"): (17.47, 19.22),
}
"""DeiT-tiny on ImageNet, by row and metric, in the order of the table."""
TABLE2: Mapping[str, Pair] = {"single": (35.72, 37.42), "multi": (36.68, 38.28)}
"""mIoU on ADE20K, by views."""
TABLE3: Mapping[str, Pair] = {"valid": (33.15, 32.44), "test": (34.29, 33.45)}
"""Perplexity on WikiText-103, by split."""
