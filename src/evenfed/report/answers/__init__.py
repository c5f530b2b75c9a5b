"""The questions that a report answers, one module each; every answer is a `Section`."""
