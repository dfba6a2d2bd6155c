import random

import pytest

pytest.importorskip("transformers")


@pytest.fixture(scope="session")
def texts(tmp_path_factory):
    """A small text with structure to learn: each word tells the next one's neighbourhood."""
    folder = tmp_path_factory.mktemp("texts")
    chance = random.Random(0)
    for split, lines in (("train", 300), ("valid", 40), ("test", 40)):
        rows = ["", " = First title = ", ""]
        for line in range(lines):
            if line == lines // 2:
                rows += [" = Second title = ", " = = A section = = "]
            word, words = chance.randrange(40), []
            for _ in range(chance.randint(3, 14)):
                words.append(f"w{word}")
                word = (word * 3 + chance.randrange(4)) % 40
            rows.append(" " + " ".join(words) + " ")
        (folder / f"{split}.txt").write_text("\n".join(rows) + "\n")
    return folder
