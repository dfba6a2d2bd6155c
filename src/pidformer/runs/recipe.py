"""The recipe of a run: what a model is, how it is trained and on what, typed and checked.

`training.recipe` reads recipes from files; a run folder holds its own, resolved.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pidformer.control.gains import is_numbers
from pidformer.convert import GainRamp
from pidformer.data import Augment
from pidformer.data.segmentation import SegmentAugment
from pidformer.errors import InputError
from pidformer.fields import as_plain, check_least, check_seed, typed
from pidformer.models.options import check_decoder, check_model


@dataclass(frozen=True, kw_only=True)
class ModelRecipe:
    name: str = "pid_deit_tiny_patch16_224"
    """One of ours, or "timm:NAME": timm's, converted when there are gains."""
    gains: Any = None
    """None (softmax), a preset, P,I,D[,BETA][,implicit][,step=H], fields, or a list by layer."""
    learn_gains: bool = False
    """Train the gains too; PID gains stay inside the stable region."""
    first_layer: Literal["free", "controlled"] = "free"
    """Whether the first layer only sets the reference (free) or is controlled."""
    attention_residual: bool = True
    """The residual connection around attention."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further keywords of the model, of a closed list: patch_size, depth, drop_path_rate, ..."""
    init: str | None = None
    """A run folder or a .safetensors file whose weights training starts from."""

    def __post_init__(self) -> None:
        if is_numbers(self.gains):  # one controller: as text, a list is always one of layers
            object.__setattr__(self, "gains", ",".join(map(repr, self.gains)))


@dataclass(frozen=True, kw_only=True)
class DataRecipe:
    name: str = "digits"
    """What the recipe was written for; `--data` says where it is."""
    image_size: int = 224
    """Pixels per side that the model sees; for segmentation, of a window."""
    batch_size: int = 1024
    """Images per optimiser step, over all processes."""
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    """Mean of each channel, pixels in [0, 1]; three for colour."""
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    """Standard deviation of each channel."""
    crop_ratio: float = 0.875
    """Share of the image that evaluation looks at, from its centre."""
    workers: int = 8
    """Processes that read images; 0 reads in the training process."""
    corrupt_limit: float = 0.001
    """Share of unreadable images at which training stops."""

    def __post_init__(self) -> None:
        if not all(0 < scale < math.inf for scale in self.std):
            raise InputError(f"data.std must be above 0, got {list(self.std)}")
        if not all(math.isfinite(offset) for offset in self.mean):
            raise InputError(f"data.mean must be finite, got {list(self.mean)}")
        if not 0 < self.crop_ratio <= 1:
            raise InputError(f"data.crop_ratio must be in (0, 1], got {self.crop_ratio!r}")


@dataclass(frozen=True, kw_only=True)
class TextRecipe:
    """What `task: language` needs to know of its text."""

    length: int = 256
    """Tokens in a row of a batch; data.batch_size counts rows."""
    tokenizer: str = "words"
    """"words" of the training text, or a Hugging Face tokenizer: folder, tokenizer.json or name."""
    split: Literal["spaces", "punctuation"] = "spaces"
    """Where words end: at spaces (text tokenised already), or at signs too."""
    min_count: int = 1
    """Words rarer than this become <unk>."""
    max_words: int | None = None
    """Largest vocabulary."""
    shift: bool = False
    """Start each epoch at another offset, so that rows are cut elsewhere."""
    cache: str | None = None
    """Folder for token files; $PIDFORMER_CACHE or the user's cache folder by default."""

    def __post_init__(self) -> None:
        check_least("text", self, ("length", "min_count"), low=1)
        check_least("text", self, ("max_words",), low=3)  # two of them are <eos> and <unk>


@dataclass(frozen=True, kw_only=True)
class OptimRecipe:
    name: Literal["adamw", "sgd"] = "adamw"
    """Optimiser."""
    lr: float = 1e-3
    """Peak learning rate."""
    lr_batch: int | None = None
    """If set, `lr` is for this batch size and scales linearly with data.batch_size."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Of AdamW."""
    eps: float = 1e-8
    """Of AdamW."""
    momentum: float = 0.9
    """Of SGD."""
    weight_decay: float = 0.05
    """Not for biases, norms, positions, the class token and learned gains."""
    clip: float | None = None
    """Largest norm of the gradient."""

    def __post_init__(self) -> None:
        check_least("optim", self, ("lr", "eps", "momentum", "weight_decay"), low=0)
        check_least("optim", self, ("lr_batch",), low=1)
        if self.clip is not None and not 0 < self.clip < math.inf:
            raise InputError(f"optim.clip must be above 0, or null for none, got {self.clip!r}")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise InputError(f"optim.betas must be in [0, 1), got {list(self.betas)}")


MOST_STEPS = 1e9
"""Steps of a run: 12 days at 1 ms each."""


@dataclass(frozen=True, kw_only=True)
class ScheduleRecipe:
    name: Literal["cosine", "poly"] = "cosine"
    """Shape of the learning rate after the warm-up."""
    power: float = 0.9
    """Of "poly"."""
    epochs: int = 300
    """Length of the run."""
    warmup_epochs: float = 5
    """Epochs over which the learning rate rises."""
    warmup_lr: float = 1e-6
    """Where it rises from."""
    min_lr: float = 1e-5
    """Where it ends."""
    per: Literal["epoch", "step"] = "step"
    """Where the learning rate moves; DeiT moves it once per epoch."""
    steps: int | None = None
    """If set, the length of the run, instead of epochs; warm-up is then `warmup_steps`."""
    warmup_steps: int = 0
    """Warm-up of a run that is counted in steps."""
    gain_ramp: float | None = None
    """If set, gains grow from zero over this share of training; see `GainRamp`."""
    gain_ramp_by_layer: bool = False
    """One layer after the other."""

    def __post_init__(self) -> None:
        check_least("schedule", self, ("epochs", "steps"), low=1, high=MOST_STEPS)
        names = ("warmup_lr", "min_lr", "warmup_epochs", "warmup_steps", "power")
        check_least("schedule", self, names, low=0)
        _ = self.ramp  # refuses one that ends after training

    @property
    def ramp(self) -> GainRamp | None:
        if self.gain_ramp is None:
            return None
        return GainRamp(share=self.gain_ramp, by_layer=self.gain_ramp_by_layer)


@dataclass(frozen=True, kw_only=True)
class TrainRecipe:
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Of the forward and backward pass; weights stay float32."""
    compile: Literal["none", "default", "reduce-overhead"] = "none"
    """torch.compile's mode (`compile_options`); reduce-overhead replays CUDA graphs."""
    accumulate: int = 1
    """Parts a process splits its share of the batch into."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """Whole models on each GPU (ddp), or sharded ones (fsdp)."""
    grad_checkpointing: bool = False
    """Recompute activations: less memory, more time."""
    ema: float | None = None
    """Decay of the averaged weights, if any."""
    evaluate_every: int = 1
    """Epochs between evaluations."""
    evaluate_steps: int | None = None
    """If set, steps between evaluations, instead of epochs."""
    keep_best: bool = False
    """Also keep the weights with the best validation score, as best.safetensors; none while gains
    grow."""
    checkpoint_seconds: float = 60
    """Seconds between checkpoints."""
    checkpoint_steps: int | None = None
    """If set, a checkpoint every so many steps, instead of by time."""
    log_steps: int = 50
    """Steps between lines of the log."""
    on_nan: Literal["stop", "skip"] = "stop"
    """What to do when the loss is no number."""

    def __post_init__(self) -> None:
        steps = ("accumulate", "evaluate_every", "evaluate_steps", "checkpoint_steps", "log_steps")
        check_least("train", self, steps, low=1)
        check_least("train", self, ("checkpoint_seconds",), low=0)
        if self.ema is not None and not 0 <= self.ema < 1:
            raise InputError(f"train.ema must be in [0, 1), got {self.ema:g}")


@dataclass(frozen=True, kw_only=True)
class DecoderRecipe:
    name: Literal["mask", "linear"] = "mask"
    """Mask transformer, or one linear layer."""
    layers: int = 2
    """Of the mask transformer."""
    dropout: float = 0.1
    """Of the mask transformer."""
    gains: Any = "same"
    """"same" as the encoder's, or as in model.gains; None is softmax attention."""

    def __post_init__(self) -> None:
        check_decoder(vars(self))


@dataclass(frozen=True, kw_only=True)
class SegmentationRecipe:
    """What only segmentation has; data.image_size is the side of its windows."""

    decoder: DecoderRecipe = field(default_factory=DecoderRecipe)
    backbone: str | None = None
    """A run folder or a .safetensors file whose weights the encoder starts from."""
    scale: tuple[int, int] = (2048, 512)
    """(long, short): images are resized, keeping their shape, to fit into it."""
    stride: int | None = None
    """Between windows of the final scores; None is 15/16 of a window (480 of 512). Scores during
    training take whole windows."""
    augment: SegmentAugment = field(default_factory=SegmentAugment)


_SECTIONS = (("segmentation", "segmentation", SegmentationRecipe), ("language", "text", TextRecipe))
"""Tasks that have a section of their own."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    task: Literal["classification", "segmentation", "language"] = "classification"
    """What is learned."""
    seed: int = 0
    """Random seed: data order, augmentation, weights, dropout."""
    model: ModelRecipe = field(default_factory=ModelRecipe)
    data: DataRecipe = field(default_factory=DataRecipe)
    augment: Augment = field(default_factory=Augment)
    optim: OptimRecipe = field(default_factory=OptimRecipe)
    schedule: ScheduleRecipe = field(default_factory=ScheduleRecipe)
    train: TrainRecipe = field(default_factory=TrainRecipe)
    segmentation: SegmentationRecipe | None = None
    text: TextRecipe | None = None

    def __post_init__(self) -> None:
        check_seed(self.seed)
        for task, name, section in _SECTIONS:
            if self.task == task and getattr(self, name) is None:
                object.__setattr__(self, name, section())
            if self.task != task and getattr(self, name) is not None:
                raise InputError(f"the section {name} needs task: {task}, got {self.task}")
        if self.segmentation is not None:
            if self.augment != Augment():
                raise InputError(
                    "the section augment is for classification; segmentation has "
                    "segmentation.augment"
                )
            stride = self.segmentation.stride
            if stride is not None and not 1 <= stride <= self.data.image_size:
                raise InputError(
                    "segmentation.stride must be from 1 to data.image_size "
                    f"({self.data.image_size}), got {stride}; null is 15/16 of it"
                )
        check_model(vars(self.model), self.task)

    @property
    def peak_lr(self) -> float:
        scale = self.data.batch_size / self.optim.lr_batch if self.optim.lr_batch else 1.0
        return self.optim.lr * scale

    def to_dict(self) -> dict[str, Any]:
        return as_plain(dataclasses.asdict(self))


def recipe_from(fields: Mapping[str, Any]) -> Recipe:
    """A recipe from plain data, every key and value checked."""
    return typed(Recipe, fields)
