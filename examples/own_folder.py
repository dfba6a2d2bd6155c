"""Train a softmax and a PID twin on your own folder of pictures, and compare them."""

import tempfile
from pathlib import Path

import pidformer as pf
from pidformer.training import load_recipe
from pidformer.training.run import train

work = Path(tempfile.mkdtemp())

# A folder in ImageNet's layout: train/CLASS/*.png and val/CLASS/*.png. Yours is there already.
for split, count in {"train": 600, "val": 100}.items():
    digits = pf.data.open_images("digits", split)
    for index in range(count):
        folder = work / "pictures" / split / digits.classes[int(digits.labels[index])]
        folder.mkdir(parents=True, exist_ok=True)
        digits.decode(index).save(folder / f"{index}.png")

# A shipped recipe, with what differs as overrides (as on the command line).
changes = ["data.name=pictures", "schedule.epochs=6", "train.compile=none"]
changes += ["data.mean=[0.5,0.5,0.5]", "data.std=[0.5,0.5,0.5]"]  # pictures are read as RGB
for name in ("softmax", "pid"):
    recipe = load_recipe(f"digits/{name}.yaml", changes)
    scores = train(recipe, work / name, data=work / "pictures", device="cpu", is_shown=False)
    print(f"{name:>8}: top-1 {scores['top1']:.1f} %")

model = pf.load(work / "pid")  # from images in [0, 1] to logits
print("the run folder:", *sorted(path.name for path in (work / "pid").iterdir()))
print("as a command: pidformer train digits/pid.yaml --data pictures", *changes)
