"""Files: tables of scores and model outputs, the forms of input, JSON, and durable writes.

What lives here: readers of tables, columns, labels, times, score files, model outputs, streams and scores that other
libraries saved; what a user's arrays, dicts and frames contain (`input_forms`, `memberships`); writing that survives a
crash, checkpoints; JSON with infinities, and validation of a file against a Struct (`schemas`). Each format is read and
written in one place, and errors name the file, the line and the value. What a result or a configuration contains is
decided in `results` and `mesh`, which use these helpers. Imports `common` and `kernels`.
"""
