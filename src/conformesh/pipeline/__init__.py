"""From a table and a guarantee to a result: problems, one run of a method on an engine, answers with certificates.

`problems` turns rows into integer weights and required ranks, `solver` runs the method, `assembly` makes the result;
`quantiles`, `p_values`, `detection` and `shift` are the other questions that devices answer together. The protocols
themselves are in `protocols`, what is saved and printed in `results`, and the user's arguments are read in `api`.
Imports `engines`, `methods`, `protocols` and what is below them.
"""
