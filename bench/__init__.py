"""`make bench`: each number is a ratio, ours beside a peer or a ceiling, in one run."""
