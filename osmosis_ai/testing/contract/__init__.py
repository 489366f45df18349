"""The parts of the contract suites, a clause or two of the contract in each file."""
