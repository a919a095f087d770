"""The figures and tables of [Wen2025], computed again and compared with what was published.

`experiments` is the table of figures; `cases` turns an entry into cells of `lab.sweeps`; `curves`, `findings` and
`verdicts` judge the numbers; `figures` and `report` show them; `reproduction` does all of it in one call. Only the
command `conformesh reproduce` and the documentation use this package.
"""
