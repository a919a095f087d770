"""From a table and a guarantee to a result: problems, one run of a method on an engine, answers with certificates.

`problems` turns rows into integer weights and required ranks, `solver` runs the method once for all of them, `assembly`
makes the result. `quantiles`, `p_values`, `detection` and `shift` answer other questions of the same devices, and
`networks` reads the argument `network`. Not here: protocols (`protocols`), what is saved and printed (`results`), the
arguments of `calibrate` and `control` (`api`). Imports `engines`, `methods`, `protocols` and what is below them.
"""
