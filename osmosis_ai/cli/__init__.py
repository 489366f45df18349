"""The command line `osmosis`."""
