"""What a user gets back: thresholds, certificates, costs, p-values, detections, quantiles and evaluations, as data.

Every class is a Struct that is saved, loaded, made into a frame and checked by `encoding`; `summaries` and `lookup`
print a result and find the thresholds of rows. Nothing here runs a method (`pipeline`) or draws (`plots`, which
`plot()` and notebooks load when called). Imports `privacy`, `scores`, `files`, `graph`, `kernels` and `common`.
"""
