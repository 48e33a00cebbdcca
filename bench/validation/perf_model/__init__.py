"""The step-time model against published measurements: rows, fit, models left out, tables."""
