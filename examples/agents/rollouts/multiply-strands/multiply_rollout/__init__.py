"""Multiply two numbers with a Strands agent."""
