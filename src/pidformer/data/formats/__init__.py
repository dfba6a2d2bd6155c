"""How sets lie on disk: a reader for each format, and the one table of all of them."""
