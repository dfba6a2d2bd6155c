import pytest
from hypothesis import given
from hypothesis import strategies as st

import pidformer as pf
from pidformer.control import spectral_radius
from pidformer.errors import InputError
from pidformer.tune import Space, read_levels
from pidformer.tune.run import search_grid, search_optuna


@given(kappa_min=st.sampled_from([-0.5, 0.0, 0.3]))
def test_every_point_of_the_grid_is_stable(kappa_min):
    grid = Space(kappa_min=kappa_min).grid()
    assert grid[0] == pf.PIDGains() and len(set(grid)) == len(grid)
    for gains in grid[1:]:
        assert max(float(spectral_radius(k, gains)) for k in (kappa_min, 0.5, 0.7, 1.0)) < 1


def test_unstable_gains_are_left_out():
    grid = Space(p=(0.4, 3.0), i=(0.0,), d=(0.0,)).grid()
    assert grid == [pf.PIDGains(), pf.PIDGains(p=0.4)]
    with pytest.raises(InputError, match="none of the 1 gains is stable"):
        Space(p=(3.0,), i=(0.0,), d=(0.0,)).grid()


def test_optuna_takes_any_seed():
    pytest.importorskip("optuna")
    space = Space(p=(0.0, 0.5))
    seen = []
    for _ in range(2):
        tried = []
        search_optuna(
            space,
            3,
            lambda gains, tried=tried: tried.append(gains) or {"clean": gains.p},
            goals={"clean": "maximize"},
            known=[],
            seed=2**70,
        )
        seen.append(tried)
    assert seen[0] == seen[1] and len(seen[0]) == 3


def test_levels():
    assert read_levels("0:0.8:0.2", "p") == (0.0, 0.2, 0.4, 0.6, 0.8)
    assert read_levels("0,0.1", "p") == (0.0, 0.1)
    for text in ("a", "0:1:0", "0:1"):
        with pytest.raises(InputError, match="--p must be"):
            read_levels(text, "p")


def test_a_grid_is_walked_in_order():
    seen = []
    search_grid(Space(), 3, lambda gains: seen.append(gains) or {})
    assert seen == Space().grid()[:3]


def test_optuna_finds_the_best_of_a_bowl_and_goes_on_where_it_stopped():
    pytest.importorskip("optuna")
    space = Space(p=(0.05, 0.9), i=(0.0, 0.6), d=(0.0, 0.1), beta=(1.0,))

    def bowl(gains):
        return {"loss": (gains.p - 0.5) ** 2 + (gains.i - 0.2) ** 2 + gains.d}

    def search(trials, known=()):
        seen = dict(known)

        def score(gains):
            seen[gains] = bowl(gains)
            return seen[gains]

        options = {"goals": {"loss": "minimize"}, "known": list(known), "seed": 0}
        search_optuna(space, trials, score, **options)
        return seen

    whole = search(40)
    assert len(whole) == 40 and all(space.allows(gains) for gains in whole)
    assert min(v["loss"] for g, v in whole.items() if g.p) < 0.03
    half = search(20)
    assert list(half) == list(whole)[:20]
    assert list(search(40, list(half.items()))) == list(whole)
