"""What the Controller view says of itself, on the server's page and on the exported one."""

WORDS = (
    "A layer of attention replaces each token by a mixture of all. Read over depth, that is a "
    "system whose tokens run together. The controller measures the error e between a token and "
    "its reference, and adds a share of it (p), of all errors so far (i) and of its change (d). "
    "Too little, and tokens grow alike; too much, and a layer overshoots by more than it corrects."
)
EQUATION = """\
v(l+1) = K v(l) + p e(l) + i (e(1) + ... + e(l)) + d (e(l) - e(l-1))
e(l)   = beta v(0) - v(l)
stable for eigenvalues kappa_min..1 of K  <=>  2p + i + 4d < 2 (1 + kappa_min)    (p > 0)"""
