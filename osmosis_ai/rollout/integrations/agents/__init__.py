"""One framework a file; each needs the extra of its name."""
