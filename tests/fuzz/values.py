"""Wrong values, of every kind that a hand, a script or a stranger gives."""

WRONG = (
    "", " ", "-", "--", "=", "a", "None", "null", "true", "no", "~",
    "nan", "inf", "-inf", "-1", "0", "1", "1.5", "-0.0", "1e300", "1e-300", "1e30", "999999999",
    "9" * 5000, "-" + "9" * 5000, "18446744073709551616", "0x10", "1_000", "1,2,3", "1:2:3",
    "a" * 5000, "é💥", "\udcff", "a\x00b", "a\nb", "../../etc/passwd", "/dev/null",
    "/proc/self/mem", "[]", "{}", "[1, 2]", "{a: b}", "[[[[[[[[", "{" * 2000, "&a [*a]", "*a",
    "!!python/name:os.system", "!!python/object/apply:os.system [id]", "<script>", "%s%n",
    "os.system", "xpu", "mps", "meta", "mkldnn", "cuda:99",
)  # fmt: skip
