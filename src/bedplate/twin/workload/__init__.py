"""Workloads: what agents ask, read from traces and journals or generated, in one form.

Reading order: `form`, `read` (which formats there are), `source` (what readers share), `branches`
(sessions out of recorded calls), one module a format, `personas` and `generate`, then what is done
with a workload: `transform`, `statistics`, `native` (the file form).
"""
