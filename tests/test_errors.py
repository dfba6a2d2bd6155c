import errno

import pytest
import torch

from pidformer.errors import is_out_of_memory, some, unknown


def test_an_unknown_name_is_told_its_neighbour_and_all_that_are_known():
    error = unknown("preset", "diet", ["lm", "deit"])
    assert str(error) == "unknown preset 'diet'; did you mean 'deit'? known: deit, lm"
    assert "did you mean" not in str(unknown("preset", "qqqq", ["lm", "deit"]))


def test_keys_of_one_section_are_not_neighbours_for_its_name():
    known = ["train.compile", "train.log_steps"]
    assert "did you mean 'train.compile'?" in str(unknown("key", "train.compil", known))
    assert "did you mean" not in str(unknown("key", "train.batch_size", known))


def test_many_names_are_counted():
    assert some(["a", "b", "c"], 2) == "a, b and 1 more"
    assert some(["a", "b"], 2) == "a, b"
    assert some([]) == "none"


def test_memory_that_runs_out_is_told_from_other_errors():
    with pytest.raises(RuntimeError) as error:
        torch.empty(2**50)  # 4 PiB
    assert is_out_of_memory(error.value)
    assert is_out_of_memory(RuntimeError("could not create a primitive"))
    assert is_out_of_memory(
        RuntimeError("unable to mmap 9 bytes from file: Cannot allocate memory (12)")
    )
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"))
    assert is_out_of_memory(MemoryError()) and is_out_of_memory(OSError(errno.ENOMEM, "no"))
    for other in (RuntimeError("shape mismatch"), OSError(errno.ENOSPC, "full"), ValueError("x")):
        assert not is_out_of_memory(other)
