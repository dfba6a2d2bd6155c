"""What the test suites of others call their tests."""

MARKERS = {
    "transformers": (
        *("accelerate_tests", "flash_attn_test", "flash_attn_3_test", "flash_attn_4_test"),
        *("flash_attn_mps_test", "torch_compile_test", "generate", "is_training_test"),
    ),
    "timm": (
        *("base", "cfg", "cfg_nonstd", "forward", "backward", "features", "timeout"),
        *("fxforward", "fxbackward", "torchscript"),
    ),
}


def pytest_configure(config):
    for library, names in MARKERS.items():
        for name in names:
            config.addinivalue_line("markers", f"{name}: a test of {library}")
