"""A decoder that is a part of a larger model, beside a vision tower."""

import re
from collections.abc import Iterable
from typing import Any

from rlcore import decoder_root, name_in_files

HEAD = "lm_head."


def decoder_config(config: Any, names: Iterable[str]) -> Any:
    """The decoder's `PretrainedConfig`. `config`: of the whole model. `names`: of the tensors in the files,
    which are not asked for where there is nothing but a decoder.

    From now on this process reads decoders of that model type by transformers from these files too, whichever
    form their names have.
    """
    text = config.get_text_config()
    if text is config:
        return config
    root = decoder_root(list(names))
    head = name_in_files(f"{HEAD}weight", root).removesuffix("weight")
    if head != HEAD:  # the older form, as of Gemma 3, which transformers reads as a whole model alone
        from transformers.conversion_mapping import (
            get_checkpoint_conversion_mapping,
            register_checkpoint_conversion_mapping,
        )
        from transformers.core_model_loading import WeightRenaming

        forms: list[Any] = [
            WeightRenaming(f"^{re.escape(found)}", wanted)
            for found, wanted in ((root, "model."), (head, HEAD))
        ]
        known = get_checkpoint_conversion_mapping(text.model_type) or []
        if forms[0].source_patterns not in [one.source_patterns for one in known]:
            register_checkpoint_conversion_mapping(text.model_type, [*forms, *known], overwrite=True)
    return text
