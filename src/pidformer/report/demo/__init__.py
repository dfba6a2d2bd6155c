"""What `pidformer demo` shows: its page, from the records of an ordinary plan's runs."""
