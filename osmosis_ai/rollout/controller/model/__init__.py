"""The kinds of model that answer policy calls, one a file."""
