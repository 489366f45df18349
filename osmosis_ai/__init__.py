"""The version and the build marker; everything else is imported from where it lives."""

__version__ = "0.3.100"

__build__ = "osmosis-ai, independent implementation"
