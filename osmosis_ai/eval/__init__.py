"""Evaluations: a workflow and its grader over a data set, and what came of it."""
