import pytest

from pidformer.data.text.corpus import ordered_map


@pytest.mark.slow
def test_processes_give_the_results_of_one_in_order():
    blocks = [f"a{n} b{n} a{n}\n" for n in range(20)]
    alone = list(ordered_map(len, blocks, 1))
    assert list(ordered_map(len, blocks, 2)) == alone
