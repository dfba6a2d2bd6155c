"""The language model of a recipe."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from logging.handlers import MemoryHandler
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from pidformer.errors import InputError, check_known, cut
from pidformer.models.build import CONTROLLER, REFUSALS
from pidformer.models.causal_lm import PIDformerConfig, PIDformerForCausalLM
from pidformer.models.language.folder import check_weights
from pidformer.models.options import check_memory, check_options

ARCHITECTURES = {"causal_lm": PIDformerConfig, "causal_lm_paper": PIDformerConfig.paper}


def build_language_model(
    config: Mapping[str, Any], *, vocab_size: int, length: int, eos_token_id: int | None
) -> PIDformerForCausalLM:
    """The model that a recipe's `model` section describes, for this vocabulary; fresh weights.

    `model.name` is "causal_lm" (today's defaults) or "causal_lm_paper"; `model.options` are
    keywords of `PIDformerConfig`.
    """
    name, options = config["name"], dict(config.get("options", {}))
    check_known("model", name, ARCHITECTURES)
    check_options(options, "language")
    given = {key: config[key] for key in CONTROLLER if key in config}
    given |= {"eos_token_id": eos_token_id, "bos_token_id": eos_token_id}
    given |= {"max_position_embeddings": length} | options
    try:
        checked = ARCHITECTURES[name](vocab_size=vocab_size, **given)
        check_memory(options, "language")
        return PIDformerForCausalLM(checked)
    except InputError:
        raise
    except REFUSALS as error:
        raise InputError(f"model {name} takes no such model.options: {cut(error, 160)}") from None


def read_pretrained(kind: Any, folder: str | Path, **options: Any) -> Any:
    """`kind.from_pretrained(folder)`, of safetensors alone; what is damaged gets one line.

    The folder's config.json is to be looked at first, by `read_config`.
    """
    check_weights(Path(folder))
    options |= {"local_files_only": True, "use_safetensors": True, "trust_remote_code": False}
    try:
        with _logged_at_last():
            return kind.from_pretrained(folder, **options)
    except InputError:
        raise
    except ImportError as error:  # of the library of a quantiser
        raise InputError(f"{folder} cannot be loaded here: {cut(error, 160)}") from None
    except (SafetensorError, *REFUSALS, LookupError, AttributeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        if "ignore_mismatched_sizes" in reason:  # which is no option of ours
            reason = "other sizes"
        raise InputError(
            f"the weights in {folder} cannot be read, or do not fit its config.json ({cut(reason)})"
            "; copy both again"
        ) from None


@contextmanager
def _logged_at_last() -> Iterator[None]:
    """What transformers logs comes after the block, and not where an error ends it."""
    logger, held = logging.getLogger("transformers"), MemoryHandler(1000, flushLevel=100)
    before, logger.handlers = logger.handlers, [held]
    try:
        yield
    finally:
        logger.handlers = before
    for record in held.buffer:
        logger.handle(record)
