from pidformer.errors import some, unknown


def test_an_unknown_name_is_told_its_neighbour_and_all_that_are_known():
    error = unknown("preset", "diet", ["lm", "deit"])
    assert str(error) == "unknown preset 'diet'; did you mean 'deit'? known: deit, lm"
    assert "did you mean" not in str(unknown("preset", "qqqq", ["lm", "deit"]))


def test_many_names_are_counted():
    assert some(["a", "b", "c"], 2) == "a, b and 1 more"
    assert some(["a", "b"], 2) == "a, b"
    assert some([]) == "none"
