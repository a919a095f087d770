"""What a user gets back: thresholds, certificates, costs, p-values, detections, quantiles and evaluations, as data.

Every class is a Struct that is saved, loaded, made into a frame and checked by `encoding`. `consistency` compares what
a file states twice, `lookup` finds the thresholds of rows, `summaries` describes a result in words, `evaluation` and
`strata` measure coverage and size of sets. Nothing here runs a method (`pipeline`) or draws (`plots`, which `plot()`
and notebooks load when called). Imports `privacy`, `scores`, `files`, `graph`, `kernels` and `common`.
"""
